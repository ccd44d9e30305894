"""Deep weight factorization, the mathematics: w = ω₁⊙…⊙ω_D, its gradient, its penalty and one step
of SGD.

Pure functions on stacked factors: a tensor of shape (D, *shape of the weight), factor d at index d.
They are the reference: the optimizers are tested against them.
Source: Kolb, Weber, Bischl, Rügamer, "Deep Weight Factorization" (ICLR 2025), here "the paper".
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

EPS = torch.finfo(torch.float32).eps
"""|w| below this counts as zero after training (the paper's threshold, 1.19e-7)."""
TINY = torch.finfo(torch.float32).tiny
"""Below this numbers are denormal: what products of factors underflow to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRule:
    """How one step moves the factors: the numbers of SGD, and the decay 2λ/D of the penalty.

    `freeze` is a magnitude of weights: a weight whose factors all lie below freeze^(1/D) is set to
    exactly zero. The default only touches weights whose product underflows anyway, and keeps
    denormal numbers out of the run.
    """

    lr: float
    decay: float
    momentum: float = 0.0
    nesterov: bool = False
    decoupled: bool = False
    freeze: float = TINY


def product(factors: Tensor) -> Tensor:
    """The weight, w = ω₁⊙…⊙ω_D.

    >>> product(torch.tensor([[2.0], [3.0], [-0.5]]))
    tensor([-3.])
    """
    # The order of the factors is the kernel's: `find_zeroed` compares weights with this
    # product bit for bit.
    result = factors[0].clone()
    for factor in factors[1:]:
        result.mul_(factor)
    return result


def others(factors: Tensor) -> Tensor:
    """For every d the product of the other factors, Π_{k≠d} ω_k. Never w/ω_d: zeros are the purpose
    here.

    >>> others(torch.tensor([[2.0], [3.0], [0.0]])).flatten().tolist()
    [0.0, 0.0, 6.0]
    """
    # Running products from both ends: 3D multiplications instead of D².
    result = torch.ones_like(factors)
    before, after = torch.ones_like(factors[0]), torch.ones_like(factors[0])
    depth = len(factors)
    for d in range(depth):
        result[d].mul_(before)
        result[depth - 1 - d].mul_(after)
        before, after = before * factors[d], after * factors[depth - 1 - d]
    return result


def step(
    factors: Tensor, momenta: Tensor, grad: Tensor, rule: StepRule
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of SGD on the factors; returns new factors, new momenta and the new weight. Nothing
    is changed in place.

    The update is that of `torch.optim.SGD` with weight decay 2λ/D on each factor; `decoupled`
    shrinks the factors by 1 − lr·2λ/D beside the momentum instead.
    """
    move = others(factors) * grad
    if not rule.decoupled:
        move = move + rule.decay * factors
    if rule.momentum:
        momenta = without_denormals(rule.momentum * momenta + move)
        move = move + rule.momentum * momenta if rule.nesterov else momenta
    kept = factors * (1 - rule.lr * rule.decay) if rule.decoupled else factors
    moved = without_denormals(kept - rule.lr * move)
    # The largest factor decides. A weight with one large factor still has a gradient
    # and may return.
    dead = moved.abs().amax(0) < root(rule.freeze, len(factors))
    moved, momenta = moved.masked_fill(dead, 0), momenta.masked_fill(dead, 0)
    return moved, momenta, without_denormals(product(moved))


def balanced(weight: Tensor, depth: int) -> Tensor:
    """Factors of equal magnitude |w|^(1/D) whose product is the weight; the sign sits in the first
    factor.

    >>> balanced(torch.tensor([-8.0]), 3).flatten().tolist()
    [-2.0, 2.0, 2.0]
    """
    # The sign sits in one factor alone: with D signs an even depth could not be negative.
    magnitude = weight.abs().pow(1 / depth)
    return torch.stack([torch.copysign(magnitude, weight), *([magnitude] * (depth - 1))])


def root(value: float, depth: float) -> float:
    """value^(1/D), and 0 for 0."""
    # A freeze that was loaded may lie just below 0 by rounding, where math.pow would raise.
    return math.pow(value, 1 / depth) if value > 0 else 0.0


def shrinkage(decay: float, depth: float, lr: float, momentum: float, decoupled: bool) -> float:
    """The logarithm of the factor by which one step with the decay 2λ/D of its factors shrinks a
    dead weight.

    >>> [round(shrinkage(0.02 / 3, 3, 0.1, 0.9, decoupled), 6) for decoupled in (False, True)]
    [0.02, 0.002]
    """
    return decay * depth * lr / (1.0 if decoupled else 1 - momentum)


def without_denormals(values: Tensor) -> Tensor:
    """Numbers in the denormal range become zero: they carry nothing and make a CPU step several
    times slower.
    """
    return torch.where(
        values.abs() < torch.finfo(values.dtype).tiny,
        torch.zeros_like(values),
        values,
    )


# What factors cost: the penalty, the least of any factors of a weight, and what lies above it.


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
    # Rounding may take the difference of two equal means below zero; M(ω) is never negative.
    return (squares.mean(0) - logs.exp()).clamp_min(0).sum()


def is_balanced(factors: Tensor, *, tolerance: float = 1e-5) -> bool:
    """Whether |ω_{j,1}| = … = |ω_{j,D}| for every weight j, relative to the largest factor of that
    weight.
    """
    sizes = factors.abs()
    # Relative and with <=, so that factors of size 1e-30 count, and zeros are balanced.
    return bool((sizes.amax(0) - sizes.amin(0) <= tolerance * sizes.amax(0)).all())
