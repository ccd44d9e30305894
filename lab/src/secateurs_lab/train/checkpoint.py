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

from secateurs.base.parameters import aliases, unwrap
from secateurs.base.safefile import replacing
from secateurs.base.untrusted import begin_file, read_header
from secateurs.errors import DataError
from secateurs_lab.train.fit import Checkpoint, check_fit, wanted


def to_bytes(tensors: dict[str, Tensor], notes: Mapping[str, str]) -> bytes:
    """The bytes that safetensors would write, but with the notes in a fixed order: safetensors
    changes the order from call to call.
    """
    blob = save(tensors)
    end = 8 + int.from_bytes(blob[:8], "little")
    header = {"__metadata__": dict(sorted(notes.items())), **json.loads(blob[8:end])}
    return begin_file(header, compact=True, ascii=True) + blob[end:]


def save_model(
    model: nn.Module, path: str | Path, *, notes: Mapping[str, str] | None = None
) -> Path:
    """Write the parameters and buffers under their own names; tied ones once, under the first name.

    The result is an ordinary safetensors file that any tool reads, and the same model gives the
    same bytes. `notes` is a mapping of text kept in its header.
    """
    model = unwrap(model)  # the names of the plain model, which loads the file
    tied = aliases(model)
    state = {name: value for name, value in model.state_dict().items() if name not in tied}
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    # Written beside and renamed: a reader sees the old file or the new one, never half
    # of one.
    with replacing(Path(path)) as part:
        part.write_bytes(to_bytes(tensors, {"format": "pt", **(notes or {})}))
    return Path(path)


def load_model_(model: nn.Module, path: str | Path) -> nn.Module:
    """Copy a checkpoint into the model, in place. Anything missing, unexpected or misshapen is
    listed; then nothing is changed.
    """
    held, inner = read_checkpoint(path), unwrap(model)
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
    # safetensors lets a name given twice pass, and would take the last.
    read_header(path, DataError)
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
            f"{path} is not a readable safetensors file: {error}. Save it again."
        ) from error
