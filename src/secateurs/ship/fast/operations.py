"""A network as a short list of operations on planes.

The fast path and the C file are written from it.

A value is the result for one image, `channels` planes of `height` × `width`; features are planes of
a single number. Weights are float64 here, with batch norms already multiplied in; a writer rounds
them once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx
from torch.utils import _pytree as pytree

Numbers: TypeAlias = NDArray[np.float64]
Whole: TypeAlias = NDArray[np.int64]
Planes: TypeAlias = tuple[int, int, int]
"""(channels, height, width) of a value, for one image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """An activation: y = max(x, 0) + slope · min(x, 0), at most `cap`. The identity for slope 1
    without cap. `slopes` is one for each channel, in place of `slope`.
    """

    slope: float = 1.0
    cap: float = math.inf
    slopes: tuple[float, ...] | None = None

    @property
    def on(self) -> bool:
        """Whether it changes anything."""
        return self.slope != 1.0 or self.cap != math.inf or self.slopes is not None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Conv:
    """y = shape(weight * x + bias + added). A linear layer is the convolution of one pixel."""

    source: str
    to: str
    weight: Numbers  # (out, in / groups, height, width)
    bias: Numbers
    stride: tuple[int, int] = (1, 1)
    # Above and to the left; the size of the result determines the rest.
    padding: tuple[int, int] = (0, 0)
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
    """Values concatenated along the channels."""

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
    """A torch tensor becomes planes; `size` is the count of numbers per image."""

    source: str
    to: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leave:
    """Planes become a torch tensor with these dimensions (preceded by the batch)."""

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
    wanted = {o.name for o in outputs if isinstance(o, Reference)}
    kept = []
    # Backwards, so that a step's readers are known before the step itself.
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


# The objects that rules handle: values on planes, results of torch, and the resulting steps.


class NotCovered(Exception):
    """Raised by a rule: this use of the operator is not covered, and why."""


@dataclass(frozen=True, slots=True, eq=False)
class Native:
    """A value on planes: `index` says where each of its numbers is in `name` (None: in order)."""

    name: str
    dims: tuple[int, ...]
    index: Tensor | None = None


@dataclass(frozen=True, slots=True)
class StaysInTorch:
    """A result of torch: of an operator that stays there, or an input."""

    node: fx.Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What a model does, in order, with the planes of every value."""

    steps: list[Step]
    planes: dict[str, Planes]
    inputs: tuple[str, ...]
    dims: tuple[tuple[int, ...], ...]  # of the inputs, without the batch
    outputs: tuple[Any, ...]  # references to tensors, or constants: numbers, texts, None
    structure: Any

    @property
    def outside(self) -> list[Outside]:
        """The operators that stay in torch."""
        return [step for step in self.steps if isinstance(step, Outside)]


def planes_of(dims: Sequence[int]) -> Planes:
    """The planes for a value of these dimensions: features have one number, sequences one row."""
    match tuple(dims):
        case (channels,):
            return (channels, 1, 1)
        case (channels, width):
            return (channels, 1, width)
        case (channels, height, width):
            return (channels, height, width)
    raise NotCovered(f"a value of {len(dims) + 1} dimensions")


def numbers(tensor: Tensor) -> Numbers:
    """A constant in float64."""
    return np.ascontiguousarray(tensor.detach().to(torch.float64).numpy())


# Steps in parts: runs of operations on planes, with operators that stay in torch between them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Operations that run without leaving the compiled program.

    enters, leaves: (tensor of torch, value on planes), in the order of the program's arguments.
    """

    operations: list[Operation]
    enters: tuple[tuple[str, str], ...]
    leaves: tuple[tuple[str, str], ...]
    dims: dict[str, tuple[int, ...]]  # of the tensors that leave, without the batch
    planes: dict[str, Planes]


Part: TypeAlias = Segment | Outside


def parts(steps: Steps) -> list[Part]:
    """As few parts as the order allows: everything that can run now runs before the next kind
    starts.
    """
    waiting, done = list(steps.steps), set(steps.inputs)
    found: list[Part] = []
    kinds: list[list[Step]] = []
    while waiting:
        # Everything that one side can do before the other starts, since each change of sides copies
        # values.
        outside = _ready(waiting, done, outside=True)
        batch = outside or _ready(waiting, done, outside=False)
        kinds.append(batch)
        chosen = {id(step) for step in batch}
        waiting = [step for step in waiting if id(step) not in chosen]
    for batch in kinds:
        if isinstance(batch[0], Outside):
            found += [step for step in batch if isinstance(step, Outside)]
        else:
            found.append(_segment(batch, steps.planes))
    return _connect(found, steps.planes)


def _ready(waiting: list[Step], done: set[str], *, outside: bool) -> list[Step]:
    """Every step of one kind that can run now or after others of its kind; `done` grows."""
    ready = []
    for step in waiting:
        if isinstance(step, Outside) == outside and {*inputs(step), *tensors(step)} <= done:
            ready.append(step)
            done.add(step.to)
    return ready


def _segment(batch: list[Step], planes: dict[str, Planes]) -> Segment:
    leaves = [step for step in batch if isinstance(step, Leave)]
    return Segment(
        operations=[step for step in batch if not isinstance(step, Enter | Leave | Outside)],
        enters=tuple((step.source, step.to) for step in batch if isinstance(step, Enter)),
        leaves=tuple((step.to, step.source) for step in leaves),
        dims={step.to: step.dims for step in leaves},
        planes=planes,
    )


def _connect(found: list[Part], planes: dict[str, Planes]) -> list[Part]:
    """Pass values that a later segment reads as torch tensors."""
    for at, part in enumerate(found):
        if not isinstance(part, Segment):
            continue
        own = {op.to for op in part.operations} | {value for _, value in part.enters}
        read = {name for op in part.operations for name in inputs(op)} | {
            value for _, value in part.leaves
        }
        # Sets have no order, and the arguments of a program need one.
        for name in sorted(read - own):
            maker = next(
                k for k, p in enumerate(found) if isinstance(p, Segment) and name in _made(p)
            )
            found[maker] = _with(found[maker], leave=name, planes=planes)
            found[at] = _with(found[at], enter=name, planes=planes)
    return found


def _made(segment: Segment) -> set[str]:
    # Values that were only passed to this segment were made in another one.
    return {op.to for op in segment.operations} | {
        value for tensor, value in segment.enters if tensor != f"{value}:passed"
    }


def _with(part: Part, *, planes: dict[str, Planes], leave: str = "", enter: str = "") -> Part:
    if not isinstance(part, Segment):
        return part
    enters = (*part.enters, (f"{enter}:passed", enter)) if enter else part.enters
    leaves, dims = part.leaves, dict(part.dims)
    if leave and f"{leave}:passed" not in dims:
        leaves = (*leaves, (f"{leave}:passed", leave))
        dims[f"{leave}:passed"] = planes[leave]
    return replace(part, enters=enters, leaves=leaves, dims=dims)
