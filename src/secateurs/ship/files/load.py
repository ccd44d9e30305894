"""Files into models: sparse files, dense checkpoints and those of torch.nn.utils.prune, whole or
not at all."""

import os
from pathlib import Path
from typing import TypeVar, overload

import torch
from torch import Tensor, nn

from secateurs.errors import SparseFileError
from secateurs.masks import from_torch_prune
from secateurs.parameters import check_model
from secateurs.ship.files.coding.words import KINDS, NAMES, to_words
from secateurs.ship.files.container import (
    Container,
    header_of,
    parse,
    read_bytes,
    write_file,
)
from secateurs.ship.files.description import Description
from secateurs.ship.files.fit import check_fit, fill_
from secateurs.ship.files.honest import short
from secateurs.ship.files.opened import (
    about,
    is_sparse,
    open_sparse,
    opened_container,
)
from secateurs.ship.files.read import decoded, read_sparse

Model = TypeVar("Model", bound=nn.Module)


@overload
def load_sparse(
    path: str | os.PathLike[str], into: None = None, *, at_most: int | None = None
) -> dict[str, Tensor]: ...
@overload
def load_sparse(
    path: str | os.PathLike[str],
    into: Model,
    *,
    at_most: int | None = None,
    narrow: bool | None = None,
) -> Model: ...


def load_sparse(
    path: str | os.PathLike[str],
    into: nn.Module | None = None,
    *,
    at_most: int | None = None,
    narrow: bool | None = None,
) -> nn.Module | dict[str, Tensor]:
    """Read a file into a model of the original class, under the original keys; or as a state dict.

    Reads what `save_sparse` wrote, any dense safetensors checkpoint, and one saved while
    `torch.nn.utils.prune` was active. A file of a compacted model narrows the modules of `into` to
    the shapes in the file.

    Args:
        path: the file.
        into: the model that gets the values, in place; it is returned. Without one a state dict is
            returned.
        at_most: how many dense bytes the file may unpack to; see `read_sparse`.
        narrow: whether smaller shapes narrow the model; by default those of a sparse file do.

    Whatever keeps the tensors out of the model is listed in one SparseFileError; then nothing has
    changed.

    >>> import tempfile
    >>> from secateurs.ship import save_sparse
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save_sparse(nn.Linear(2, 1), f"{folder}/layer.safetensors")
    ...     load_sparse(f"{folder}/layer.safetensors", into=nn.Linear(2, 1))
    Linear(in_features=2, out_features=1, bias=True)
    """
    path = Path(path)
    if into is not None:
        check_model(into)
    held = parse(read_bytes(path), path)
    if into is None:
        return _state(held, path, at_most)
    narrow = is_sparse(held) if narrow is None else narrow
    # Before anything is decoded: what fits a model is no larger than it.
    if is_sparse(held):
        described = opened_container(held, path, at_most=at_most).described
        check_fit(into, _claims(described), path, narrow=narrow)
    # Checked again below with values: only then can tied tensors be compared.
    state = _state(held, path, at_most)
    check_fit(into, state, path, narrow=narrow)
    fill_(into, state)
    return into


def check_file(path: str | os.PathLike[str], model: nn.Module) -> None:
    """Raise what keeps a sparse file out of a model (meta device allowed); decode nothing."""
    path = Path(path)
    check_fit(model, _claims(open_sparse(path).described), path, narrow=True)


def is_sparse_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file says it is a sparse one; one that is no safetensors file is not."""
    try:
        return is_sparse(parse(read_bytes(Path(path)), Path(path)))
    except SparseFileError:
        return False


def notes_of(path: str | os.PathLike[str]) -> dict[str, str]:
    """The notes of a safetensors file, sparse or not, without its tensors."""
    path = Path(path)
    held = parse(read_bytes(path), path)
    return (
        about(opened_container(held, path))["notes"]
        if is_sparse(held)
        else held.metadata
    )


def unpack_sparse(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    at_most: int | None = None,
) -> Path:
    """Write the dense safetensors file of a sparse one: tied tensors once, under their first names,
    notes kept."""
    file = read_sparse(path, at_most=at_most)
    metadata = {"format": "pt"} | {
        key: text for key, text in file.notes.items() if key != "format"
    }
    entries = {
        name: (NAMES[tensor.dtype], tuple(tensor.shape))
        for name, tensor in file.tensors.items()
    }
    words = (
        to_words(tensor, KINDS[NAMES[tensor.dtype]])
        for tensor in file.tensors.values()
    )
    write_file(Path(out), header_of(metadata, entries), (w.tobytes() for w in words))
    return Path(out)


def _state(held: Container, path: Path, at_most: int | None) -> dict[str, Tensor]:
    """The tensors under all their names, whatever kind of file this is."""
    if is_sparse(held):
        opened = opened_container(held, path, at_most=at_most)
        tensors = decoded(opened)
        return tensors | {
            alias: tensors[first] for alias, first in opened.described.ties.items()
        }
    if held.metadata.get("format", "").startswith("secateurs.masks"):
        raise SparseFileError(
            f"{path} holds masks, not weights: read it with load_masks."
        )
    dense = {name: _dense(name, held, path) for name in held.entries}
    return (
        # torch.nn.utils.prune keeps weight_orig and weight_mask instead of weight.
        from_torch_prune(dense).state
        if any(name.endswith("_orig") for name in dense)
        else dense
    )


def _claims(described: Description) -> dict[str, Tensor]:
    """Tensors without values, of the shapes and dtypes that a description claims."""
    named = {line.name: line for line in described.lines if line.name}
    named |= {alias: named[first] for alias, first in described.ties.items()}
    return {
        # On the meta device no memory is taken for what a file merely claims.
        n: torch.empty(x.shape, dtype=KINDS[x.dtype].dtype, device="meta")
        for n, x in named.items()
    }


def _dense(name: str, held: Container, path: Path) -> Tensor:
    entry = held.entries[name]
    if entry.dtype not in KINDS:
        raise SparseFileError(
            f"{path}: {short(name)} has dtype {entry.dtype}, which is not read."
        )
    dtype = KINDS[entry.dtype].dtype
    # frombuffer refuses an empty buffer.
    if not len(entry.data):
        return torch.zeros(entry.shape, dtype=dtype)
    # A copy that can be written to, which the bytes of the file cannot.
    return torch.frombuffer(bytearray(entry.data), dtype=dtype).reshape(entry.shape)
