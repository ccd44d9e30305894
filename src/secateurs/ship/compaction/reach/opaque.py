"""What is known behind a function that no primitive describes."""

from collections.abc import Iterable
from functools import reduce

import torch
from torch import Tensor

from secateurs.graph import Opaque
from secateurs.ship.compaction.labels.carried import laid, spread
from secateurs.ship.compaction.marks import reduced
from secateurs.ship.compaction.reach.known import Reach
from secateurs.ship.compaction.reach.spans import Span, anything


def opaque(
    node: Opaque, arrive: list[Tensor], spans: list[Span]
) -> tuple[Tensor, Span]:
    """Whether inputs arrive, and bounds: a constant's own value, zero behind a zero factor."""
    reached = _either(_laid(node, i, marks) for i, marks in enumerate(arrive))
    span = _span(node, spans)
    # What is fixed at zero is reached by no input: the caller sees that by the bounds.
    for i in node.zeros:
        zero = ~_laid(node, i, _alive(spans[i]))
        span = Span(
            low=torch.where(zero, 0.0, span.low),
            high=torch.where(zero, 0.0, span.high),
        )
    return reduced(reached), Span(low=reduced(span.low), high=reduced(span.high))


def used_through(node: Opaque, known: Reach, marks: Tensor) -> list[Tensor]:
    """Where each input is used: not where another factor is zero."""
    back = []
    for i, carried in enumerate(node.carried):
        some = marks
        for j in node.zeros:
            if j != i:
                constant = known.constant[node.inputs[j]]
                some = some & _laid(node, j, constant != 0)
        back.append(reduced(spread(some, carried)))
    return back


def _span(node: Opaque, spans: list[Span]) -> Span:
    none = anything(len(node.shape))
    if not node.elementwise:
        return none
    low, high = (
        node.function(*[_aligned(end, node) for end in ends])
        for ends in ([s.low for s in spans], [s.high for s in spans])
    )
    fixed = reduce(torch.logical_and, (_aligned(s.fixed, node) for s in spans))
    # Bounds pass through what only bends and clips. A sigmoid far out rounds to one number, which
    # would look like a constant: behind it nothing is known.
    if not node.rising:
        low = torch.where(fixed, low, none.low)
        high = torch.where(fixed, high, none.high)
    unknown = low.isnan() | high.isnan()
    return Span(
        low=torch.where(unknown, none.low, low),
        high=torch.where(unknown, none.high, high),
    )


def _aligned(marks: Tensor, node: Opaque) -> Tensor:
    """An input's marks with the result's number of dimensions, as broadcasting adds them."""
    missing = len(node.shape) - marks.ndim
    return marks.reshape(*[1] * missing, *marks.shape)


def _laid(node: Opaque, i: int, marks: Tensor) -> Tensor:
    return laid(marks, node.carried[i], len(node.shape), lambda rows: rows.any(1))


def _alive(span: Span) -> Tensor:
    """Where a value can be anything but zero."""
    return ~((span.low == 0) & (span.high == 0))


def _either(marks: Iterable[Tensor]) -> Tensor:
    return reduce(torch.logical_or, marks)
