"""Planes above and below a ReLU and above and below the difference of two ReLUs, given bounds of
what enters them.

With z the pre-activation in f, z' the one in g and δ = z − z', write F(z, δ) = relu(z) − relu(z −
δ), the difference of the two outputs. Several planes p·z + q·δ + c lie above F; each is sound
alone, so the choice among them is free. Planes below come from the ones above by exchanging the two
networks: F(z, δ) = −F(z', −δ).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.paths.certificates.flows.bounds import Bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """The function p·z + q·δ + c, per neuron."""

    p: Tensor
    q: Tensor
    c: Tensor

    def at(self, z: Tensor, d: Tensor) -> Tensor:
        """Its value."""
        return self.p * z + self.q * d + self.c

    def leaky(self, slope: float, *, difference: bool) -> "Plane":
        """The plane for slope·z + (1 − slope)·relu(z), or for the difference of two of these; needs
        slope ≤ 1.
        """
        rest = 1 - slope
        if difference:
            return Plane(p=rest * self.p, q=slope + rest * self.q, c=rest * self.c)
        return Plane(p=slope + rest * self.p, q=rest * self.q, c=rest * self.c)


def relu_above(l: Tensor, h: Tensor) -> Plane:
    """The chord: relu(z) ≤ h(z − l)/(h − l) on an unstable neuron; exact on a stable one."""
    zero = torch.zeros_like(l)
    slope = torch.where(
        l >= 0, torch.ones_like(l), torch.where(h <= 0, zero, _share(h, h - l))
    )
    return Plane(p=slope, q=zero, c=torch.where((l < 0) & (h > 0), -slope * l, zero))


def relu_below(l: Tensor, h: Tensor) -> Plane:
    """relu(z) ≥ z or ≥ 0, whichever loses less area; exact on a stable neuron."""
    zero = torch.zeros_like(l)
    # The area lost is l²/2 above z and h²/2 above 0; a tie takes 0.
    return Plane(p=(h > -l).to(l.dtype), q=zero, c=zero)


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
    for rule in _ABOVE:
        yield rule(b)


def planes_below(b: Bounds) -> Iterator[Plane]:
    """Every plane below F we know."""
    yield from (_exchange(plane) for plane in planes_above(b.exchanged()))


def _one_lipschitz(b: Bounds) -> Plane:
    """F ≤ max(0, δ), whose chord over [dl, dh] is a plane."""
    chord = relu_above(b.dl, b.dh)
    # The chord is one in δ: its slope belongs to q.
    return Plane(p=chord.q, q=chord.p, c=chord.c)


def _chord_minus_zero(b: Bounds) -> Plane:
    """relu(z) ≤ chord and relu(z') ≥ 0."""
    return relu_above(b.l, b.h)


def _chord_minus_identity(b: Bounds) -> Plane:
    """relu(z) ≤ chord and relu(z') ≥ z' = z − δ."""
    chord = relu_above(b.l, b.h)
    return Plane(p=chord.p - 1, q=torch.ones_like(b.l), c=chord.c)


def _clamped(b: Bounds) -> Plane:
    """For 0 < dh: F ≤ clamp(z, 0, dh), which lies under the line from (l, 0) to (dh, dh)."""
    slope = _share(b.dh, b.dh - b.l)
    return _where(
        (b.dh > 0) & (b.l < 0),
        Plane(p=slope, q=torch.zeros_like(slope), c=-slope * b.l),
    )


def _clamped_in_g(b: Bounds) -> Plane:
    """For 0 < dh < −gl: F ≤ clamp(z' + dh, 0, dh), which lies under the line from (gl, 0) to (0,
    dh) in z'.
    """
    slope = _share(b.dh, -b.gl)
    return _where(
        (b.dh > 0) & (b.gl + b.dh < 0), Plane(p=slope, q=-slope, c=-slope * b.gl)
    )


def _negative(b: Bounds) -> Plane:
    """For dh < 0: F ≤ −clamp(z', 0, −dh), which lies under the line from (0, 0) to (gh, −e), e =
    min(−dh, gh).
    """
    slope = _share(torch.minimum(-b.dh, b.gh), b.gh)
    return _where(
        (b.dh < 0) & (b.gh > 0), Plane(p=-slope, q=slope, c=torch.zeros_like(slope))
    )


# `_one_lipschitz` is first because it applies everywhere: the choice starts from a
# plane that is finite.
_ABOVE: tuple[Callable[[Bounds], Plane], ...] = (
    _one_lipschitz,
    _chord_minus_zero,
    _chord_minus_identity,
    _clamped,
    _clamped_in_g,
    _negative,
)


def _where(applies: Tensor, plane: Plane) -> Plane:
    zero = torch.zeros_like(plane.c)
    return Plane(
        p=torch.where(applies, plane.p, zero),
        q=torch.where(applies, plane.q, zero),
        # At +∞ a plane loses every comparison.
        c=torch.where(applies, plane.c, torch.full_like(zero, torch.inf)),
    )


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


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """part/whole where whole > 0, else 0."""
    return torch.where(
        whole > 0,
        # `where` computes both sides; the clamp keeps a division by 0 out of the tape.
        part / whole.clamp(min=torch.finfo(whole.dtype).tiny),
        torch.zeros_like(part),
    )
