"""A network as a short list of operations on planes.

The fast path and the C file are written from it.

A value is the result for one image, `channels` planes of `height` × `width`; features are planes of
one number. Weights are float64 here, with batch norms already multiplied in; a writer rounds them
once.
"""

import math
from dataclasses import dataclass
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
