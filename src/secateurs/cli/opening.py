"""The network of a checkpoint, opened with suspicion: what its notes say must fit its tensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from secateurs.errors import ArgumentError

if TYPE_CHECKING:
    from torch import Tensor, nn


def open_model(
    path: Path,
    *,
    arch: str | None,
    in_channels: int | None,
    classes: int | None,
    size: int | None,
) -> "tuple[nn.Module, dict[str, str]]":
    """The network of a checkpoint with its weights, and the notes that belong into the next
    checkpoint.

    What is not given is taken from the notes that `secateurs train` left in the file.
    """
    from secateurs.models import build, skeleton
    from secateurs.ship.files import check_file, is_sparse_file, load_sparse, notes_of
    from secateurs.train import check_fit, load_model_, read_checkpoint

    sparse = is_sparse_file(path)
    left = notes_of(path) if sparse else read_checkpoint(path).notes
    name = arch or left.get("arch")
    if name is None:
        raise ArgumentError(
            f"{path} does not say which network it is: add --arch NAME (see `secateurs models`)."
        )
    shape = {
        "in_channels": in_channels or _number(left, "in_channels"),
        "classes": classes or _number(left, "classes") or 10,
        "size": size or _number(left, "size"),
    }
    # The notes of a file may claim anything: no memory is taken before they are known to fit its
    # tensors.
    empty, told = skeleton(name, **shape), notes(name, **shape)  # type: ignore[arg-type]
    if sparse:
        check_file(path, empty)
        return load_sparse(path, into=build(name, **shape)), told  # type: ignore[arg-type]
    held = read_checkpoint(path)
    if _compacted(empty, held.tensors):
        return load_sparse(path, build(name, **shape), narrow=True), told  # type: ignore[arg-type]
    check_fit(empty, held, path)
    return load_model_(build(name, **shape), path), told  # type: ignore[arg-type]


def _compacted(model: "nn.Module", tensors: "Mapping[str, Tensor]") -> bool:
    """Whether these are the model's tensors, none of them larger and some smaller.

    Compaction leaves inputs and outputs alone, so the first weight reads as much and the last one
    gives as much as the model's: a file that claims a huge network is not believed.
    """
    pairs = [
        (tensors[name].shape, own.shape)
        for name, own in model.state_dict().items()
        if name in tensors and tensors[name].ndim == own.ndim
    ]
    inside = all(
        a <= b for small, large in pairs for a, b in zip(small, large, strict=True)
    )
    # Equal shapes are an ordinary checkpoint, which has checks of its own.
    if not inside or all(small == large for small, large in pairs):
        return False
    (first, read), (last, given) = pairs[0], pairs[-1]
    return bool(first[1:2] == read[1:2] and last[:1] == given[:1])


def notes(
    arch: str, *, in_channels: int | None, classes: int | None, size: int | None
) -> dict[str, str]:
    """What a checkpoint says about its network, as text."""
    from secateurs.models import MODELS

    made = MODELS[arch]
    return {
        "arch": arch,
        "in_channels": str(in_channels or made.in_channels),
        "classes": str(classes or 10),
        "size": str(size or made.size),
    }


def _number(left: dict[str, str], key: str) -> int | None:
    """A count from the notes of a file, which anybody may have written."""
    text = left.get(key, "")
    # No network has a hundred thousand classes, channels or pixels a side: such a note would only
    # make us take the memory that it asks for.
    return int(text) if text.isdecimal() and len(text) < 6 else None
