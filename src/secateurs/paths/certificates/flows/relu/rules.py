"""Six planes above the difference of two ReLUs; each is sound alone."""

from collections.abc import Callable

import torch
from torch import Tensor

from secateurs.paths.certificates.flows.bounds import Bounds
from secateurs.paths.certificates.flows.relu.plane import Plane, relu_above, share


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
    slope = share(b.dh, b.dh - b.l)
    return _where(
        (b.dh > 0) & (b.l < 0),
        Plane(p=slope, q=torch.zeros_like(slope), c=-slope * b.l),
    )


def _clamped_in_g(b: Bounds) -> Plane:
    """For 0 < dh < −gl: F ≤ clamp(z' + dh, 0, dh), which lies under the line from (gl, 0) to (0,
    dh) in z'.
    """
    slope = share(b.dh, -b.gl)
    return _where(
        (b.dh > 0) & (b.gl + b.dh < 0), Plane(p=slope, q=-slope, c=-slope * b.gl)
    )


def _negative(b: Bounds) -> Plane:
    """For dh < 0: F ≤ −clamp(z', 0, −dh), which lies under the line from (0, 0) to (gh, −e), e =
    min(−dh, gh).
    """
    slope = share(torch.minimum(-b.dh, b.gh), b.gh)
    return _where(
        (b.dh < 0) & (b.gh > 0), Plane(p=-slope, q=slope, c=torch.zeros_like(slope))
    )


# `_one_lipschitz` is first because it applies everywhere: the choice starts from a
# plane that is finite.
ABOVE: tuple[Callable[[Bounds], Plane], ...] = (
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
