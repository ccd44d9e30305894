"""Intervals of f and of f − g with as few passes as will do: the flow that training differentiates.

`Interval` carries the interval of g too and tightens each of the three by the other two. Here g
follows from f and the difference, which saves two of eight passes and most of the tape; nothing is
rounded outwards. It is as sound as `Interval` in real arithmetic, and looser.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.graph.primitives import (
    Activation,
    Add,
    Affine,
    Input,
    Pool,
    Structural,
)
from secateurs.paths.certificates.flows.bounds import Bounds
from secateurs.paths.certificates.flows.interval import activated
from secateurs.paths.certificates.flows.pair import (
    Pair,
    gap,
    lift,
    linear,
    magnitude,
    signed_sum,
)

_FIELDS = ("cf", "rf", "cd", "rd")


@dataclass(frozen=True, slots=True, kw_only=True)
class CoarseIntervals:
    """f within cf ± rf and f − g within cd ± rd; all (boxes, *shape)."""

    cf: Tensor
    rf: Tensor
    cd: Tensor
    rd: Tensor

    @property
    def largest(self) -> Tensor:
        """The largest |f − g|."""
        return self.cd.abs() + self.rd

    @property
    def bounds(self) -> Bounds:
        """Ends of f and of the difference, and the ends of g that follow."""
        l, h = self.cf - self.rf, self.cf + self.rf
        dl, dh = self.cd - self.rd, self.cd + self.rd
        return Bounds(l=l, h=h, gl=l - dh, gh=h - dl, dl=dl, dh=dh)


class Coarse:
    """The flow; fed with a pair (centre, radius), params is a `Pair`."""

    def input(self, node: Input, value: tuple[Tensor, Tensor]) -> CoarseIntervals:
        """The box; both networks see one input."""
        center, radius = value
        zero = torch.zeros_like(center)
        return CoarseIntervals(cf=center, rf=radius, cd=zero, rd=zero)

    def affine(
        self, node: Affine, x: CoarseIntervals | None, params: Pair
    ) -> CoarseIntervals:
        """W z − W' z' = W' (z − z') + (W − W') z, in centres, and with |·| in radii."""
        b, c = params.biases(node) or (torch.zeros(()),) * 2
        if x is None:
            zero = b.new_zeros(1, *node.shape)
            return CoarseIntervals(cf=zero + b, rf=zero, cd=zero + (b - c), rd=zero)
        w, v = params.weights(node)
        cf, cd = _both(node, x.cf, x.cd, w, v)
        rf, rd = _both(node, x.rf, x.rd, w, v, magnitude)
        return CoarseIntervals(cf=cf + b, rf=rf, cd=cd + (b - c), rd=rd)

    def activation(self, node: Activation, x: CoarseIntervals) -> CoarseIntervals:
        """The case split of ReluDiff."""
        return _centred(activated(x.bounds, node.slope))

    def pool(self, node: Pool, x: CoarseIntervals) -> CoarseIntervals:
        """A k-th largest grows with every entry; two of them differ by no more than the entries."""
        b = x.bounds
        # Ends of the difference by the maximum of the entries' ends, for every k: two
        # k-th largest values lie no further apart than the entry that moved most.
        ends = {"l": lift(node.apply, b.l), "h": lift(node.apply, b.h)}
        ends |= {"dl": -lift(node.maximum, -b.dl), "dh": lift(node.maximum, b.dh)}
        return _centred(Bounds(gl=ends["l"], gh=ends["h"], **ends))

    def structural(
        self, node: Structural, xs: Sequence[CoarseIntervals]
    ) -> CoarseIntervals:
        """The same reordering of centres and radii."""
        return CoarseIntervals(
            **{k: lift(node.function, *(getattr(x, k) for x in xs)) for k in _FIELDS}
        )

    def add(self, node: Add, xs: Sequence[CoarseIntervals]) -> CoarseIntervals:
        """Centres add with signs, radii without."""
        centers = {
            k: signed_sum(node, [getattr(x, k) for x in xs]) for k in ("cf", "cd")
        }
        radii = {
            k: sum((getattr(x, k) for x in xs[1:]), getattr(xs[0], k))
            for k in ("rf", "rd")
        }
        return CoarseIntervals(**centers, **radii)


def _both(
    node: Affine,
    f: Tensor,
    d: Tensor,
    w: Tensor | None,
    v: Tensor | None,
    size: Callable[[Tensor | None], Tensor | None] = lambda weight: weight,
) -> tuple[Tensor, Tensor]:
    """(W f, W' d + (W − W') f), with `size` of each matrix."""
    change = gap(w, v)
    # Layers that were not changed need no third pass.
    if w is None or v is None or change is None or torch.equal(w, v):
        return linear(node, f, size(w)), linear(node, d, size(v))
    axes = node.operation.axes
    # Blocks would mix the groups of a grouped or depthwise map.
    if axes is None or axes.diagonal or axes.groups != 1:
        moved = linear(node, d, size(v)) + linear(node, f, size(change))
        return linear(node, f, size(w)), moved
    # One pass over the channels of both: narrow convolutions cost as much as ones twice as wide.
    one, two, three = (size(matrix) for matrix in (w, v, change))
    rows = [torch.cat(row, dim=axes.weight_in) for row in _blocks(one, two, three)]
    weight = torch.cat(rows, dim=axes.weight_out)
    stacked = linear(node, torch.cat([f, d], dim=_of_boxes(axes.x)), weight)
    first, second = stacked.chunk(2, dim=_of_boxes(axes.y))
    return first, second


def _blocks(
    w: Tensor | None, v: Tensor | None, change: Tensor | None
) -> list[list[Tensor]]:
    """[[W, 0], [W − W', W']], rows over outputs."""
    if w is None or v is None or change is None:
        return []
    return [[w, torch.zeros_like(w)], [change, v]]


def _of_boxes(axis: int) -> int:
    """An axis of one sample, in a batch of boxes."""
    return axis + 1 if axis >= 0 else axis


def _centred(b: Bounds) -> CoarseIntervals:
    return CoarseIntervals(
        cf=(b.l + b.h) / 2,
        rf=(b.h - b.l) / 2,
        cd=(b.dl + b.dh) / 2,
        rd=(b.dh - b.dl) / 2,
    )
