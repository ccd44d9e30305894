"""Plain-model checkpoints as safetensors: names and shapes checked on load, written whole or not at
all.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from secateurs.errors import DataError
from secateurs.graph.ir import unwrapped
from secateurs.parameters import aliases
from secateurs.safefile import conversion_of, replacing
from secateurs.train.fit import Checkpoint, check_fit, wanted

# The header of a safetensors file: names given twice are refused, notes keep their order.

HEADER_LIMIT = 100_000_000
"""safetensors' own limit on the header, in bytes."""


def written(tensors: dict[str, Tensor], notes: Mapping[str, str]) -> bytes:
    """What safetensors would write, with the notes in a fixed order: it shuffles them from call to
    call.
    """
    blob = save(tensors)
    end = 8 + int.from_bytes(blob[:8], "little")
    header = {"__metadata__": dict(sorted(notes.items())), **json.loads(blob[8:end])}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors stay aligned to eight bytes
    return len(text).to_bytes(8, "little") + text + blob[end:]


def check_header(path: Path) -> None:
    """What safetensors lets pass: a name given twice, of which it would take the last."""
    try:
        with path.open("rb") as file:
            begin = file.read(8)
            length = int.from_bytes(begin, "little")
            if not 2 <= length <= min(HEADER_LIMIT, path.stat().st_size):
                raise DataError(
                    conversion_of(path, begin)
                    or f"{path} is no safetensors file: it does not begin with the length of a"
                    " header."
                )
            json.loads(file.read(length), object_pairs_hook=_unique)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is no readable safetensors file: {error}. Save it again."
        ) from error


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = [name for name, _ in pairs]
    twice = (
        next((name for name in names if names.count(name) > 1), None)
        if len(set(names)) < len(names)
        else None
    )
    if twice is not None:
        raise ValueError(f"the name {twice!r} is given twice")
    return dict(pairs)


def save_model(
    model: nn.Module, path: str | Path, *, notes: Mapping[str, str] | None = None
) -> Path:
    """Write the parameters and buffers under their own names; tied ones once, under the first name.

    The result is an ordinary safetensors file that any tool reads, and the same model gives the
    same bytes. `notes` is a mapping of text kept in its header.
    """
    model = unwrapped(model)  # the names of the plain model, which loads the file
    tied = aliases(model)
    state = {name: value for name, value in model.state_dict().items() if name not in tied}
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    # Written beside and renamed: a reader sees the old file or the new one, never half
    # of one.
    with replacing(Path(path)) as part:
        part.write_bytes(written(tensors, {"format": "pt", **(notes or {})}))
    return Path(path)


def load_model_(model: nn.Module, path: str | Path) -> nn.Module:
    """Copy a checkpoint into the model, in place. Anything missing, unexpected or misshapen is
    listed; then nothing is changed.
    """
    held, inner = read_checkpoint(path), unwrapped(model)
    check_fit(inner, held, path)
    with torch.no_grad():
        for name, value in wanted(inner).items():
            value.copy_(held.tensors[name])
    return model


def read_checkpoint(path: str | Path) -> Checkpoint:
    """All tensors of a safetensors file, on the CPU. A file that is missing, damaged or foreign is
    refused.
    """
    path = Path(path)
    check_header(path)
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            notes = file.metadata() or {}
            names = file.keys()  # the file itself is not iterable
            return Checkpoint(tensors={n: file.get_tensor(n) for n in names}, notes=notes)
    except (
        SafetensorError,
        OSError,
        ValueError,
        RuntimeError,
        TypeError,
        AttributeError,
        KeyError,
    ) as error:
        raise DataError(
            f"{path} is no readable safetensors file: {error}. Save it again."
        ) from error
