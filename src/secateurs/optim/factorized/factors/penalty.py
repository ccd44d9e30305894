"""What factors cost: the penalty, the least of any factors of a weight, and what lies above it."""

from torch import Tensor


def penalty(factors: Tensor) -> Tensor:
    """The penalty on the factors, (1/D) Σ_d ‖ω_d‖², without λ."""
    return factors.square().sum() / len(factors)


def minimal_penalty(weight: Tensor, depth: float) -> Tensor:
    """The least penalty of any factors of this weight: ‖w‖_{2/D}^{2/D} (Lemma 1)."""
    return weight.abs().pow(2 / depth).sum()


def misalignment(factors: Tensor) -> Tensor:
    """M(ω) = (1/D) Σ‖ω_d‖² − ‖w‖_{2/D}^{2/D} ≥ 0, zero exactly for balanced factors (section 3 of
    the paper).

    Computed per weight as arithmetic minus geometric mean of ω_d², so that rounding cannot make
    large terms cancel across weights.
    """
    squares = factors.square()
    # The log of the geometric mean, so that no product underflows; exp(-inf) = 0.
    logs = squares.log().mean(0)
    # Rounding may take the difference of two equal means below zero; M(ω) is never
    # negative.
    return (squares.mean(0) - logs.exp()).clamp_min(0).sum()


def is_balanced(factors: Tensor, *, tolerance: float = 1e-5) -> bool:
    """Whether |ω_{j,1}| = … = |ω_{j,D}| for every weight j, relative to the largest factor of that
    weight.
    """
    sizes = factors.abs()
    # Relative and with <=, so that factors of size 1e-30 count, and zeros are balanced.
    return bool((sizes.amax(0) - sizes.amin(0) <= tolerance * sizes.amax(0)).all())
