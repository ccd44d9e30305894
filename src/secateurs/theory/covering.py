"""Covering numbers of Φ(Θ) and Dudley's integral: Theorem H.1, Theorem G.1 and Lemma G.1.

Source: Gonon et al. 2024, appendices G and H. θ runs over the parameters of one network with
‖Φ(θ)‖₁ ≤ r, its kinds of neurons as `partition` finds them.
"""

import math
from collections.abc import Callable

from scipy import integrate

from secateurs.errors import DomainError
from secateurs.theory.partition import Partition


def theorem_h1(found: Partition, *, radius: float, scale: float) -> float:
    """Theorem H.1, corrected: ln of a bound on the covering number N(Φ(Θ), ‖·‖₁, t).

    N ≤ 2^H · X^E with X = max(1, 24·max(D, d_out)·r/t), H the kinds of hidden neurons and E =
    Σ_hidden k_ℓ + Σ_outputs (k_ℓ + 1) for biased kinds. The paper has E = Σ k_ℓ + 1, which forgets
    that the outputs are not normalised: false for two output kinds (docs/errata.md). For parameters
    of one sign pattern, the case that Theorem G.2 needs.

    Args:
        radius: r, a bound on ‖Φ(θ)‖₁ over Θ.
        scale: t, the radius of the covering balls.

    Proof: Theorem E.1 for normalised parameters. Hidden kinds lie in {0} ∪ the ℓ¹ sphere of
    R^{k+1}, of which one orthant is covered at t/2Dr by (24Dr/t)^k balls; output kinds lie in the
    ball of radius r of R^{k+1}, covered at t/2d_out by (12 d_out r/t)^{k+1}.

    Reference: Gonon et al. 2024, Theorem H.1.
    """
    _check(radius=radius, scale=scale)
    # At radius 0 there is one point and one ball covers it; below X = 1 a logarithm
    # would be negative, yet at least one ball is needed.
    grown = max(0.0, math.log(24 * found.width * radius / scale)) if radius > 0 else 0.0
    return found.hidden * math.log(2) + found.exponent * grown


def theorem_g1(
    log_covering: Callable[[float], float],
    *,
    loss_lipschitz: float,
    samples: int,
    diameter: float,
) -> float:
    """Theorem G.1: E gen ≤ (24√2·L/n)·∫_0^∞ √ln N(Θ, d_X, t) dt, for any class of functions.

    Args:
        log_covering: t ↦ ln N(Θ, d_X, t), not increasing.
        diameter: beyond this t one ball is enough, and the integral ends.

    >>> round(theorem_g1(lambda t: 1.0, loss_lipschitz=1.0, samples=100, diameter=2.0), 4)
    0.6788

    Reference: Gonon et al. 2024, Theorem G.1 (symmetrisation, Maurer's contraction, Dudley).
    """
    _check(loss_lipschitz=loss_lipschitz, samples=samples)
    integral = _dudley(log_covering, diameter)
    return 24 * math.sqrt(2) * loss_lipschitz / samples * integral


def lemma_g1(
    log_covering: Callable[[float], float],
    *,
    radius: float,
    spread: float,
    log_signs: float,
) -> float:
    """Lemma G.1: ∫ √ln N(Θ, d_X, t) dt ≤ 2rσ_X·√ln|S| + σ_X·∫_0^{2r} √ln f(u) du.

    The paper takes S, the sign patterns, from parameters without any zero coordinate. That set is
    empty when a bias is missing or a weight is fixed to zero: S must be taken over the free
    coordinates.

    Args:
        log_covering: u ↦ ln f(u), the covering numbers of Φ(Θ_s) in ℓ¹, the largest over signs s.
        radius: r = sup ‖Φ(θ)‖₁.
        spread: σ_X = (Σ_i max(1, ‖x_i‖²_∞))^{1/2}.
        log_signs: ln|S|.

    Reference: Gonon et al. 2024, Lemma G.1. By Lemma G.2 f may be taken over the positive orthant.
    """
    _check(spread=spread)
    return spread * (2 * radius * math.sqrt(log_signs) + _dudley(log_covering, 2 * radius))


def theorem_g2_factor(found: Partition) -> float:
    """c with E gen ≤ (L·B/√n)·c·r: Theorem G.2 with its integral done, for any partition [ours].

    c = 24√2·(2√(P ln 2) + 2√(H ln 2) + 24M·J(1/12M)·√E), M = max(D, d_out), P the coordinates,
    E = P − H, J(a) = ∫_0^a √ln(1/t) dt = a√ln(1/a) + (√π/2)·erfc √ln(1/a). It never exceeds
    544·M·√P where H ≤ P, to which the paper rounds it.
    """
    wide, ln2 = found.width, math.log(2)
    # There are at most 2^P sign patterns. √(a + b) ≤ √a + √b parts ln(2^H·X^E) into two
    # roots, and u = 24Mr·t turns the integral over the second into J.
    signs = math.sqrt(found.coordinates * ln2) + math.sqrt(found.hidden * ln2)
    covering = 24 * wide * _log_integral(1 / (12 * wide)) * math.sqrt(max(0, found.exponent))
    return 24 * math.sqrt(2) * (2 * signs + covering)


def _log_integral(a: float) -> float:
    """∫_0^a √ln(1/t) dt, by t = e^{−s²}."""
    s = math.sqrt(math.log(1 / a))
    return a * s + math.sqrt(math.pi) / 2 * math.erfc(s)


def _dudley(log_covering: Callable[[float], float], end: float) -> float:
    """∫_0^end √ln N(t) dt; the root of a logarithm is integrable at zero."""
    if end == 0:
        return 0.0
    # The integrand has no finite value at 0, so quad may need more pieces than its
    # usual 50.
    value, _ = integrate.quad(lambda t: math.sqrt(max(0.0, log_covering(t))), 0, end, limit=200)
    return float(value)


def _check(**positive: float) -> None:
    wrong = [
        f"{name}={value!r}"
        for name, value in positive.items()
        # Written as `not …` so that a NaN is refused as well.
        if not 0 <= value < math.inf
    ]
    wrong += [f"{name}=0" for name in ("scale", "samples") if positive.get(name) == 0]
    if wrong:
        raise DomainError(f"{', '.join(wrong)}: give finite numbers, positive where they divide.")
