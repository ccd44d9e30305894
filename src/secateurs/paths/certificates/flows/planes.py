"""Planes above and below a ReLU and above and below the difference of two ReLUs, given bounds of
what enters them.

With z the pre-activation in f, z' the one in g and δ = z − z', write F(z, δ) = relu(z) − relu(z −
δ), the difference of the two outputs. Several planes p·z + q·δ + c lie above F; each is sound
alone, so the choice among them is free. Planes below come from the ones above by exchanging the two
networks: F(z, δ) = −F(z', −δ).
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from secateurs.paths.certificates.flows.bounds import Bounds
from secateurs.paths.certificates.flows.relu.plane import Plane, relu_above
from secateurs.paths.certificates.flows.relu.rules import ABOVE


def difference_above(b: Bounds) -> Plane:
    """The plane above F that is lowest in the middle of the bounds."""
    # Any choice is sound. The middle is cheap to compare at and is where the mean of a
    # plane over the box lies.
    z, d = (b.l + b.h) / 2, (b.dl + b.dh) / 2
    best: Plane | None = None
    for plane in planes_above(b):
        best = plane if best is None else _lower(best, plane, z, d)
    return best if best is not None else relu_above(b.l, b.h)


def difference_below(b: Bounds) -> Plane:
    """The plane below F that is highest in the middle of the bounds."""
    return _exchange(difference_above(b.exchanged()))


def relu_range(b: Bounds) -> Bounds:
    """The exact ranges of relu(z), relu(z') and their difference: the case split of ReluDiff."""
    return Bounds(
        l=b.l.relu(),
        h=b.h.relu(),
        gl=b.gl.relu(),
        gh=b.gh.relu(),
        dl=-_largest_difference(b.exchanged()),
        dh=_largest_difference(b),
    )


def _largest_difference(b: Bounds) -> Tensor:
    """max F: F grows with z and with δ, so a corner decides; 0 where both neurons are inactive.

    relu(h) − relu(max(gl, h − dh)) for dh ≥ 0, relu(gl + dh) − relu(gl) else; written without a
    sum of two large numbers, so that a tiny difference of large values keeps its digits.
    """
    growing = torch.minimum(b.h.relu() - b.gl.relu(), b.dh)
    falling = torch.maximum(b.dh, -b.gl.relu())
    return torch.where(b.dh >= 0, growing, falling)


def planes_above(b: Bounds) -> Iterator[Plane]:
    """Every plane above F we know. Where a rule does not apply to a neuron, its plane is +∞
    there.
    """
    for rule in ABOVE:
        yield rule(b)


def planes_below(b: Bounds) -> Iterator[Plane]:
    """Every plane below F we know."""
    yield from (_exchange(plane) for plane in planes_above(b.exchanged()))


def costliest(flat: Bounds, open_: Tensor, count: int) -> Tensor:
    """The open neurons of each box that lose most, (boxes, neurons)."""
    losses = torch.where(open_, loss(flat), -1.0)
    return losses.topk(min(count, losses.shape[1]), dim=1).indices


def loss(b: Bounds) -> Tensor:
    """What the planes of a neuron lose in the difference, and of what they lose in f the share
    that the change of weights can turn into a difference.
    """
    lost = difference_above(b).at(_mid(b.l, b.h), _mid(b.dl, b.dh))
    lost = lost - difference_below(b).at(_mid(b.l, b.h), _mid(b.dl, b.dh))
    # A box of no width has no spread to share: the clamp keeps 0/0 away.
    share = (b.dh - b.dl).sum(dim=1) / (b.h - b.l).sum(dim=1).clamp(min=1e-300)
    in_f = torch.minimum(b.h, -b.l).relu()
    # NaN comes from bounds that overflowed: nothing can be worse, so they are tried
    # first.
    total: Tensor = lost + share.clamp(max=1).unsqueeze(1) * in_f
    return total.nan_to_num(nan=torch.inf)


def _mid(low: Tensor, high: Tensor) -> Tensor:
    return (low + high) / 2


def _lower(one: Plane, two: Plane, z: Tensor, d: Tensor) -> Plane:
    """Per neuron the plane that is lower at (z, δ); a tie keeps the first."""
    better = two.at(z, d) < one.at(z, d)
    return Plane(
        **{
            k: torch.where(better, getattr(two, k), getattr(one, k))
            for k in ("p", "q", "c")
        }
    )


def _exchange(plane: Plane) -> Plane:
    """From a plane above −F in terms of (z', −δ) to the plane below F in terms of (z, δ)."""
    return Plane(p=-plane.p, q=plane.p + plane.q, c=-plane.c)
