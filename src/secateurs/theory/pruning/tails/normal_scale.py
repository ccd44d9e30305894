"""The normal law above a masked entry in the convex order: the scale of step 4."""

import math

from scipy import optimize, special

from secateurs.theory.pruning.tails.layer import Law


def normal_scale(share: float, law: Law = "uniform") -> float:
    """s(p): a masked entry (of range ±1, hit with chance p) lies below N(0, s²) in the convex
    order.

    Signs: E(X − t)₊ = p(1−t)/2 touches the normal at z = t/s with Q(z) = p/2, so s = (p/2)/ϕ(z).
    Uniform: p(1−t)²/4 touches it where, with Mills' ratio r = Q/ϕ, s = r/(2 − zr) and p = ϕ r(2 −
    zr)/(1 − zr).

    >>> scales = normal_scale(1.0), normal_scale(0.1), normal_scale(1.0, "bounded")
    >>> tuple(round(scale, 4) for scale in scales)
    (0.6267, 0.3381, 1.2533)
    """
    if law == "bounded":
        # ndtri of a small p/2 is exact, of 1 − p/2 it would not be.
        return share / 2 / _density(-float(special.ndtri(share / 2)))
    # Nothing masked: the law touches the normal in the middle.
    z = 0.0 if share >= 1 else _touching(share)
    mills = _mills(z)
    return mills / (2 - z * mills)


_FAR = 8.0
"""Beyond this the share is below 1e-13; the scale of a larger share is an upper bound."""


def _touching(share: float) -> float:
    return (
        _FAR
        if _share_at(_FAR) >= share
        else float(optimize.brentq(lambda z: _share_at(z) - share, 0.0, _FAR))
    )


def _share_at(z: float) -> float:
    mills = _mills(z)
    return _density(z) * mills * (2 - z * mills) / (1 - z * mills)


def _mills(z: float) -> float:
    # erfcx, the scaled complement: Q and ϕ both underflow for large z, their ratio does
    # not.
    return math.sqrt(math.pi / 2) * float(special.erfcx(z / math.sqrt(2)))


def _density(z: float) -> float:
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
