"""Tensors of a file into a model: all that does not fit in one error, then values and, for
compacted models, smaller shapes."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from secateurs.errors import SparseFileError
from secateurs.parameters import aliases
from secateurs.registry import unknown
from secateurs.ship.compaction.narrow import describe_, narrow_
from secateurs.ship.files.coding.words import KINDS, NAMES, to_words


def check_fit(
    model: nn.Module, state: Mapping[str, Tensor], path: Path, *, narrow: bool = False
) -> None:
    """One error for all that keeps these tensors out of the model; with `narrow` they may be
    smaller than its own, and biases may be new."""
    wanted, tied = model.state_dict(), aliases(model)
    problems = _missing(wanted, tied, state)
    for name, value in state.items():
        if name in wanted:
            problems += _misfit(name, wanted[name], value, narrow=narrow)
        elif not (narrow and _is_free_bias(model, name)):
            problems.append(unknown("tensor", name, wanted).rstrip("."))
    problems += [
        f"{alias!r} and {first!r} are one tensor in the model and differ in the file"
        for alias, first in tied.items()
        if {alias, first} <= state.keys() and not _same(state[alias], state[first])
    ]
    if problems:
        more = f" and {len(problems) - 6} more" if len(problems) > 6 else ""
        listed = "; ".join(sorted(problems)[:6])
        raise SparseFileError(
            f"{path} does not fit {type(model).__name__}: {listed}{more}."
        )


@torch.no_grad()
def fill_(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy the values; where a shape in the state is smaller, narrow the module to it first."""
    wanted, tied = model.state_dict(), aliases(model)
    fresh = {name for name in state if name not in wanted}
    smaller = {
        name: value
        for name, value in state.items()
        if name not in tied and (name in fresh or value.shape != wanted[name].shape)
    }
    if smaller:
        _narrow_(model, smaller, fresh)
    # Asked for again, since narrowing has put other tensors in their places.
    for name, value in model.state_dict().items():
        if name in state:
            # Into the tensors that are there, so that ties
            # and the references of others stay.
            value.copy_(state[name])


def _narrow_(
    model: nn.Module, smaller: Mapping[str, Tensor], fresh: set[str]
) -> None:
    """The shapes of a file are its architecture: modules take them over, with their attributes."""
    convolutions = [
        m for m in model.modules() if isinstance(m, nn.modules.conv._ConvNd)
    ]
    before = {
        module: len(module.weight) for module in convolutions if module.groups > 1
    }
    narrow_(model, smaller, fresh)
    for module, rows in before.items():  # compaction takes whole groups or none
        module.groups = module.groups * len(module.weight) // rows
    for owner in model.modules():
        describe_(owner)


def _missing(
    wanted: Mapping[str, Tensor], tied: Mapping[str, str], state: Mapping[str, Tensor]
) -> list[str]:
    names = [
        # A tied tensor need not be there twice: its first name is enough.
        name
        for name in wanted
        if name not in state and tied.get(name) not in state
    ]
    return [f"it lacks {name!r}" for name in names]


def _misfit(name: str, ours: Tensor, theirs: Tensor, *, narrow: bool) -> list[str]:
    if ours.is_meta and not theirs.is_meta:
        return [
            f"{name!r} is on the meta device: use model.to_empty(device='cpu') first"
        ]
    if ours.dtype != theirs.dtype:
        types = f"{theirs.dtype} in the file and {ours.dtype} in the model"
        return [f"{name!r} is {types}: convert the model first"]
    if ours.shape == theirs.shape or (narrow and _fits_inside(theirs, ours)):
        return []
    return [
        f"{name!r} is {list(theirs.shape)} in the file and {list(ours.shape)} in the model"
    ]


def _fits_inside(small: Tensor, large: Tensor) -> bool:
    sizes = zip(small.shape, large.shape, strict=False)
    return small.ndim == large.ndim and all(0 < a <= b for a, b in sizes)


def _is_free_bias(model: nn.Module, name: str) -> bool:
    """Whether this is the bias of a module that has none: where compaction puts constants."""
    path, _, leaf = name.rpartition(".")
    owner = dict(model.named_modules()).get(path)
    return leaf == "bias" and owner is not None and getattr(owner, "bias", 0) is None


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same bits; of tensors without values nothing is known yet."""
    if a is b or a.is_meta:
        return True
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    kind = KINDS[NAMES[a.dtype]]
    return bool((to_words(a, kind) == to_words(b, kind)).all())
