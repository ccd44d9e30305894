"""Steps in parts: runs of operations on planes, and between them operators that stay in torch."""

from dataclasses import dataclass
from typing import TypeAlias

from secateurs.ship.fast.operations import (
    Enter,
    Leave,
    Operation,
    Outside,
    Planes,
    Step,
    inputs,
    tensors,
)
from secateurs.ship.fast.values import Steps


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
    """As few parts as the order of things allows: all that can run now runs before the next kind is
    begun.
    """
    waiting, done = list(steps.steps), set(steps.inputs)
    found: list[Part] = []
    kinds: list[list[Step]] = []
    while waiting:
        # All that one side can do before the other begins:
        # each change of sides copies values.
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
    return _connected(found, steps.planes)


def _ready(waiting: list[Step], done: set[str], *, outside: bool) -> list[Step]:
    """Every step of one kind that can run now or after others of its kind; `done` grows."""
    ready = []
    for step in waiting:
        if (
            isinstance(step, Outside) == outside
            and {*inputs(step), *tensors(step)} <= done
        ):
            ready.append(step)
            done.add(step.to)
    return ready


def _segment(batch: list[Step], planes: dict[str, Planes]) -> Segment:
    leaves = [step for step in batch if isinstance(step, Leave)]
    return Segment(
        operations=[
            step for step in batch if not isinstance(step, Enter | Leave | Outside)
        ],
        enters=tuple(
            (step.source, step.to) for step in batch if isinstance(step, Enter)
        ),
        leaves=tuple((step.to, step.source) for step in leaves),
        dims={step.to: step.dims for step in leaves},
        planes=planes,
    )


def _connected(found: list[Part], planes: dict[str, Planes]) -> list[Part]:
    """Values that a later segment reads travel there as tensors of torch."""
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
                k
                for k, p in enumerate(found)
                if isinstance(p, Segment) and name in _made(p)
            )
            found[maker] = _with(found[maker], leave=name, planes=planes)
            found[at] = _with(found[at], enter=name, planes=planes)
    return found


def _made(segment: Segment) -> set[str]:
    # What was only passed on to this segment was made in another one.
    return {op.to for op in segment.operations} | {
        value for tensor, value in segment.enters if tensor != f"{value}:passed"
    }


def _with(
    part: Part, *, planes: dict[str, Planes], leave: str = "", enter: str = ""
) -> Part:
    if not isinstance(part, Segment):
        return part
    enters = (*part.enters, (f"{enter}:passed", enter)) if enter else part.enters
    leaves, dims = part.leaves, dict(part.dims)
    if leave and f"{leave}:passed" not in dims:
        leaves = (*leaves, (f"{leave}:passed", leave))
        dims[f"{leave}:passed"] = planes[leave]
    return Segment(
        operations=part.operations,
        enters=enters,
        leaves=leaves,
        dims=dims,
        planes=planes,
    )
