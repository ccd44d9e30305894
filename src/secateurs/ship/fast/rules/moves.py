"""Rules of what only moves numbers: views, slices, shuffles, padding, concatenation."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from secateurs.ship.fast.operations import Cat
from secateurs.ship.fast.read import Reader, runs
from secateurs.ship.fast.trace import BATCH
from secateurs.ship.fast.values import Gap, Native, planes_of

aten = torch.ops.aten


@runs(aten.cat.default)
def cat(to: Reader, xs: Any, dim: int = 0) -> Native:
    """Values after one another along the channels."""
    values = [to.native(x) for x in xs]
    dims = values[0].dims
    if dim % (len(dims) + 1) != 1 or any(v.dims[1:] != dims[1:] for v in values):
        raise Gap(f"a cat along dimension {dim}")
    total = sum(v.dims[0] for v in values)
    return to.emit(Cat, (total, *dims[1:]), sources=tuple(v.name for v in values))


def moves(*operators: Any) -> None:
    """Register operators that only move numbers: applied to positions, they say where each number
    comes from.
    """
    for operator in operators:
        runs(operator)(_moving(operator))


def _moving(operator: Any) -> Callable[..., Any]:
    def rule(to: Reader, x: Any, *args: Any, **kwargs: Any) -> Any:
        value = to.view(x)
        n = math.prod(value.dims)
        places = (
            torch.arange(n).reshape(value.dims)
            if value.index is None
            else value.index
        )
        try:
            # torch's own operator moves the positions, so a rule cannot differ from it.
            moved = operator(_positions(places, operator), *args, **kwargs)
        except (RuntimeError, IndexError, NotImplementedError) as error:
            raise Gap(str(error).splitlines()[0]) from error
        if isinstance(moved, Tensor):
            return _moved(value, moved)
        return [_moved(value, one) for one in moved]

    return rule


def _positions(places: Tensor, operator: Any) -> Tensor:
    """For both samples, from 1 on: zeros that the operator brings stay zero. Floats where it knows
    no integers.
    """
    first = places + 1
    second = torch.where(places < 0, 0, first + _SECOND)
    both = torch.stack([first, second])
    return both.double() if operator in _FLOATING else both


def _moved(value: Native, both: Tensor) -> Native:
    both = both.long()
    if both.ndim < 2 or both.shape[0] != BATCH:
        raise Gap("it mixes the samples of a batch")
    index = both[0] - 1
    # The second sample must take its numbers from the same places as the first.
    same = torch.where(both[0] > 0, both[0] + _SECOND, 0)
    if (
        not bool((both[1] == same).all())
        or bool((both[0] > _SECOND).any())
        or index.numel() == 0
    ):
        raise Gap("it mixes the samples of a batch")
    dims = tuple(index.shape)
    if (
        len(dims) <= 3
        and math.prod(value.dims) == index.numel()
        and _same_planes(value, dims, index)
    ):
        return Native(value.name, dims)
    return Native(value.name, dims, index)


def _same_planes(value: Native, dims: tuple[int, ...], index: Tensor) -> bool:
    """Whether the result is the value itself under another name: same planes, same order."""
    if value.index is not None or not bool(
        (index.reshape(-1) == torch.arange(index.numel())).all()
    ):
        return False
    channels, height, width = planes_of(value.dims)
    return planes_of(dims)[0] == channels and (planes_of(dims)[1:] == (height, width))


_SECOND = 2**40  # exact in float64
# Operators that refuse integers: they move the positions as float64.
_FLOATING = {
    aten.upsample_nearest2d.vec,
    aten.upsample_nearest1d.vec,
    aten.pixel_shuffle.default,
    aten.pad.default,
    aten.channel_shuffle.default,
}

moves(
    *(
        aten.view.default,
        aten.reshape.default,
        aten.flatten.using_ints,
        aten.unflatten.int,
        aten._unsafe_view.default,
    ),
    *(
        aten.permute.default,
        aten.transpose.int,
        aten.slice.Tensor,
        aten.select.int,
        aten.unsqueeze.default,
    ),
    *(
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.chunk.default,
        aten.split.Tensor,
    ),
    *(
        aten.split_with_sizes.default,
        aten.split.default,
        aten.narrow.default,
        aten.flip.default,
        aten.expand.default,
    ),
    *(
        aten.channel_shuffle.default,
        aten.pixel_shuffle.default,
        aten.upsample_nearest2d.vec,
        aten.repeat.default,
    ),
    *(
        aten.upsample_nearest1d.vec,
        aten.t.default,
        aten.swapaxes.default,
    ),
)


@runs(aten.pad.default)
def pad(
    to: Reader, x: Any, sizes: Any, mode: str = "constant", value: float | None = None
) -> Any:
    """Zeros around, or cut away; other modes repeat what is there."""
    if mode == "constant" and value not in (None, 0, 0.0):
        raise Gap(f"padding with {value}")
    return _moving(aten.pad.default)(to, x, sizes, mode, value)


@runs(aten.constant_pad_nd.default)
def constant_pad(to: Reader, x: Any, sizes: Any, value: float = 0) -> Any:
    """Zeros around, or cut away; positions can say nothing of any other number."""
    if value:
        raise Gap(f"padding with {value}")
    return _moving(aten.constant_pad_nd.default)(to, x, sizes)
