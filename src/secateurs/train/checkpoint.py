"""Plain-model checkpoints as safetensors: names and shapes checked on load, written whole or not at
all.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from secateurs.errors import DataError
from secateurs.graph.ir import unwrapped
from secateurs.parameters import aliases

HEADER_LIMIT = 100_000_000
"""safetensors' own limit on the header, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The tensors of a file by name, and the text its writer left with them."""

    tensors: dict[str, Tensor]
    notes: dict[str, str]


def save_model(
    model: nn.Module, path: str | Path, *, notes: Mapping[str, str] | None = None
) -> Path:
    """Write the parameters and buffers under their own names; tied ones once, under the first name.

    The result is an ordinary safetensors file that any tool reads, and the same model gives the
    same bytes. `notes` is a mapping of text kept in its header.
    """
    model = unwrapped(model)  # the names of the plain model, which loads the file
    tied = aliases(model)
    state = {
        name: value for name, value in model.state_dict().items() if name not in tied
    }
    tensors = {
        name: value.detach().cpu().contiguous() for name, value in state.items()
    }
    # Written beside and renamed: a reader sees the old file or the new one, never half
    # of one.
    with replacing(Path(path)) as part:
        part.write_bytes(_bytes(tensors, {"format": "pt", **(notes or {})}))
    return Path(path)


def load_model_(model: nn.Module, path: str | Path) -> nn.Module:
    """Copy a checkpoint into the model, in place. Anything missing, unexpected or misshapen is
    listed; then nothing is changed.
    """
    held, inner = read_checkpoint(path), unwrapped(model)
    check_fit(inner, held, path)
    with torch.no_grad():
        for name, value in _wanted(inner).items():
            value.copy_(held.tensors[name])
    return model


def check_fit(model: nn.Module, held: Checkpoint, path: str | Path) -> None:
    """Raise one error that lists whatever keeps these tensors out of the model; the model may be on
    the meta device.
    """
    tied = aliases(model)
    problems = _problems(
        _wanted(model),
        # A file may hold a tied weight under each of its names.
        {name: value for name, value in held.tensors.items() if name not in tied},
    )
    if problems:
        raise DataError(
            f"{path} does not fit {type(model).__name__}: {'; '.join(problems)}."
        )


def _wanted(model: nn.Module) -> dict[str, Tensor]:
    tied = aliases(model)
    return {
        name: value for name, value in model.state_dict().items() if name not in tied
    }


def read_checkpoint(path: str | Path) -> Checkpoint:
    """All tensors of a safetensors file, on the CPU. A file that is missing, damaged or foreign is
    refused.
    """
    path = Path(path)
    _check_header(path)
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            notes = file.metadata() or {}
            names = file.keys()  # the file itself is not iterable
            return Checkpoint(
                tensors={n: file.get_tensor(n) for n in names}, notes=notes
            )
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


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its name when the block ends well, and vanishes
    when it does not.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(
        prefix=f".{path.name}.", suffix=".part", dir=path.parent
    )
    os.close(handle)
    try:
        yield Path(name)
        # Mkstemp makes private files; the result is an ordinary one.
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _bytes(tensors: dict[str, Tensor], notes: Mapping[str, str]) -> bytes:
    """What safetensors would write, with the notes in a fixed order: it shuffles them from call to
    call.
    """
    blob = save(tensors)
    end = 8 + int.from_bytes(blob[:8], "little")
    header = {"__metadata__": dict(sorted(notes.items())), **json.loads(blob[8:end])}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors stay aligned to eight bytes
    return len(text).to_bytes(8, "little") + text + blob[end:]


def _umask() -> int:
    # The umask can only be read by setting it.
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _check_header(path: Path) -> None:
    """What safetensors lets pass: a name given twice, of which it would take the last."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(HEADER_LIMIT, path.stat().st_size):
                raise DataError(
                    f"{path} is no safetensors file: it does not begin with the length of a header."
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


def _problems(wanted: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> list[str]:
    missing = [name for name in wanted if name not in held]
    unexpected = [name for name in held if name not in wanted]
    problems = [_listed("missing", missing), _listed("unexpected", unexpected)]
    for name in wanted.keys() & held.keys():
        ours, theirs = wanted[name], held[name]
        if ours.shape != theirs.shape:
            problems.append(
                f"{name!r} is {list(theirs.shape)} in the file and {list(ours.shape)} in the model"
            )
        # Another float width is converted; integers in place of floats are another
        # model.
        elif ours.is_floating_point() != theirs.is_floating_point():
            problems.append(
                f"{name!r} is {theirs.dtype} in the file and {ours.dtype} in the model"
            )
    return sorted(problem for problem in problems if problem)


def _listed(what: str, names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{what} {', '.join(map(repr, names[:5]))}{more}" if names else ""
