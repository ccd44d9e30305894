"""A network as a short list of operations on planes.

The fast path and the C file are written from it.

A value is the result for one image, `channels` planes of `height` × `width`; features are planes of
one number. Weights are float64 here, with batch norms already multiplied in; a writer rounds them
once.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch.utils import _pytree as pytree

Numbers: TypeAlias = NDArray[np.float64]
Whole: TypeAlias = NDArray[np.int64]
Planes: TypeAlias = tuple[int, int, int]
"""(channels, height, width) of a value, for one image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """An activation: y = max(x, 0) + slope · min(x, 0), at most `cap`. The identity for slope 1
    without cap.
    """

    slope: float = 1.0
    cap: float = math.inf

    @property
    def on(self) -> bool:
        """Whether it changes anything."""
        return self.slope != 1.0 or self.cap != math.inf


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Conv:
    """y = shape(weight * x + bias + added). A linear layer is the convolution of one pixel."""

    source: str
    to: str
    weight: Numbers  # (out, in / groups, height, width)
    bias: Numbers
    stride: tuple[int, int] = (1, 1)
    # Above and to the left; the size of the result says the rest.
    padding: tuple[int, int] = (
        0,
        0,
    )
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    added: str | None = None
    shape: Shape = Shape()
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scale:
    """y = shape(scale · x + shift), channel by channel."""

    source: str
    to: str
    scale: Numbers | None = None
    shift: Numbers | None = None
    shape: Shape = Shape()
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Add:
    """y = shape(a + sign · b)."""

    a: str
    b: str
    to: str
    sign: float = 1.0
    shape: Shape = Shape()
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pool:
    """The maximum, or the sum times `factor`, over windows: per output row and column (first, end,
    step).
    """

    source: str
    to: str
    maximum: bool
    rows: NDArray[np.int32]
    columns: NDArray[np.int32]
    factor: Numbers
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gather:
    """y[i] = x[index[i]], both flat; −1 is zero. Every chain of views, slices and shuffles is one
    of these.
    """

    source: str
    to: str
    index: Whole
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cat:
    """Values after one another along the channels."""

    sources: tuple[str, ...]
    to: str
    place: str = ""


Operation: TypeAlias = Conv | Scale | Add | Pool | Gather | Cat


@dataclass(frozen=True, slots=True)
class Reference:
    """Stands for a tensor of torch in the arguments of an operator that stays there."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outside:
    """An operator that stays in torch."""

    to: str
    target: Any
    args: Any
    kwargs: Any
    why: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Enter:
    """A tensor of torch becomes planes; `size` numbers an image."""

    source: str
    to: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leave:
    """Planes become a tensor of torch of these dimensions (and the batch in front)."""

    source: str
    to: str
    dims: tuple[int, ...]


Step: TypeAlias = Operation | Outside | Enter | Leave


def inputs(op: Step) -> tuple[str, ...]:
    """The values on planes that a step reads."""
    match op:
        case Conv():
            return (op.source,) if op.added is None else (op.source, op.added)
        case Add():
            return (op.a, op.b)
        case Cat():
            return op.sources
        case Enter() | Outside():
            return ()
        case _:
            return (op.source,)


def tensors(step: Step) -> tuple[str, ...]:
    """The tensors of torch that a step reads."""
    if isinstance(step, Enter):
        return (step.source,)
    if not isinstance(step, Outside):
        return ()
    leaves = pytree.tree_leaves((step.args, step.kwargs))
    return tuple(leaf.name for leaf in leaves if isinstance(leaf, Reference))


def needed(steps: list[Step], outputs: tuple[Any, ...]) -> list[Step]:
    """The steps that the outputs depend on."""
    wanted = {name for name in outputs if isinstance(name, str)}
    kept = []
    # Backwards, so that a step's readers are known before it is asked for.
    for step in reversed(steps):
        if step.to in wanted:
            kept.append(step)
            wanted |= {*inputs(step), *tensors(step)}
    return kept[::-1]


def work(op: Step, planes: dict[str, Planes]) -> int:
    """Multiplications with non-zero weights for one image."""
    if not isinstance(op, Conv):
        return 0
    _, height, width = planes[op.to]
    return int(np.count_nonzero(op.weight)) * height * width


def fused(steps: list[Step]) -> list[Step]:
    """Batch norms multiplied into convolutions; additions and activations done where a convolution
    ends.
    """
    ops = list(steps)
    # One pair at a time: what was joined may join with the next.
    while True:
        joined = _join_one(ops)
        if joined is None:
            return ops
        ops = joined


def _join_one(ops: list[Step]) -> list[Step] | None:
    uses: dict[str, int] = {}
    for op in ops:
        for name in inputs(op):
            uses[name] = uses.get(name, 0) + 1
    made = {op.to: i for i, op in enumerate(ops)}
    for at, op in enumerate(ops):
        # A value that somebody else reads, too, has to be there as it is.
        names = [n for n in inputs(op) if n in made and uses[n] == 1]
        for name in sorted(names, key=lambda n: -made[n]):
            one = _joined(ops[made[name]], op)
            if one is not None:
                rest = [o for i, o in enumerate(ops) if i not in (at, made[name])]
                # Where the second one stood: by then everything that it reads has been
                # made.
                return [*rest[: at - 1], one, *rest[at - 1 :]]
    return None


def _joined(first: Step, then: Step) -> Step | None:
    """One operation instead of two, where there is such a one."""
    # A tensor enters as flat as it is read.
    match first, then:
        # Behind an addition or an activation a factor can no longer go into the
        # weights.
        case Conv(), Scale() if first.added is None and not first.shape.on:
            return _scaled(first, then)
        case ((Conv() | Scale() | Add()), Scale()) if (
            _only_shape(then) and not first.shape.on
        ):
            return replace(first, to=then.to, shape=then.shape)
        case Scale(), Scale() if not first.shape.on:
            scale = _product(first.scale, then.scale)
            shift = _sum(_product(first.shift, then.scale), then.shift)
            return replace(then, source=first.source, scale=scale, shift=shift)
        case Enter(), Gather() if np.array_equal(then.index, np.arange(first.size)):
            return replace(first, to=then.to)
        case Conv(), Add() if first.added is None and not first.shape.on:
            return _added(first, then)
        case _:
            return None


def _scaled(conv: Conv, then: Scale) -> Conv:
    scale = np.ones(len(conv.bias)) if then.scale is None else then.scale
    weight = conv.weight * scale.reshape(-1, 1, 1, 1)
    bias = conv.bias * scale + (0.0 if then.shift is None else then.shift)
    return replace(conv, to=then.to, weight=weight, bias=bias, shape=then.shape)


def _added(conv: Conv, then: Add) -> Conv | None:
    # x + x reads the convolution twice, and only one of the two can become it.
    if then.a == then.b:
        return None
    # a − conv: the convolution itself changes sign.
    if then.b == conv.to and then.sign != 1.0:
        conv = replace(
            conv, weight=conv.weight * then.sign, bias=conv.bias * then.sign
        )
        return replace(conv, to=then.to, added=then.a, shape=then.shape)
    # conv + α · other: the kernel adds without a factor.
    if then.sign != 1.0:
        return None
    other = then.b if then.a == conv.to else then.a
    return replace(conv, to=then.to, added=other, shape=then.shape)


def _only_shape(op: Scale) -> bool:
    return op.scale is None and op.shift is None


def _product(a: Numbers | None, b: Numbers | None) -> Numbers | None:
    return b if a is None else a if b is None else a * b


def _sum(a: Numbers | None, b: Numbers | None) -> Numbers | None:
    return b if a is None else a if b is None else a + b
