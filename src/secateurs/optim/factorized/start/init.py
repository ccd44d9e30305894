"""What a start may use, what it returns, and the table of starts by name."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from secateurs.errors import ArgumentError, ParameterError
from secateurs.optim.factorized.start import gaussian
from secateurs.random import normal
from secateurs.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a rule may use: the parameter's values, depth, σ_w, options of the rule, and the
    generator.
    """

    weight: Tensor
    depth: int
    sigma: float
    name: str = "the parameter"
    match_variance: bool = False
    """Whether the product's variance is σ_w² exactly: a correction of dwf, vanilla, root; so anyway
    for the others.
    """
    zeros: Literal["revive", "frozen"] | None = None
    terms: int = gaussian.TERMS
    generator: torch.Generator | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Stacked factors, and a note when a rule had to deviate from the paper for this parameter."""

    factors: Tensor
    note: str = ""


Init: TypeAlias = Callable[[Start], Started]


INITS: Registry[Init] = Registry("initialisation")


def factorize(how: str, start: Start) -> Started:
    """Factors of one parameter by the initialisation of this name.

    >>> g = torch.Generator().manual_seed(0)
    >>> start = Start(weight=torch.zeros(4, 9), depth=3, sigma=1 / 3, generator=g)
    >>> factorize("dwf", start).factors.shape
    torch.Size([3, 4, 9])
    """
    # "not >" and not "<=": a sigma of NaN is refused too.
    if not start.sigma > 0 or not math.isfinite(start.sigma):
        raise ArgumentError(
            f"sigma={start.sigma} for {start.name}: the standard deviation of a weight is above 0."
        )
    return INITS[how](start)


def standard_normal(start: Start) -> Tensor:
    like = wide(start.weight)
    return torch.stack(
        [normal(like, generator=start.generator) for _ in range(start.depth)]
    )


def finite_weight(start: Start) -> Tensor:
    """The weight, whose roots the factors are to be."""
    weight = wide(start.weight)
    if broken := int((~weight.isfinite()).sum()):
        raise ParameterError(
            f"{start.name} has {broken} entries of {weight.numel()} that are NaN or infinite and"
            " have no factors: load or draw its weights first."
        )
    return weight


def wide(weight: Tensor) -> Tensor:
    """Factors of half-precision weights are kept in float32."""
    return (
        weight.detach()
        if weight.dtype in (torch.float32, torch.float64)
        else weight.detach().float()
    )


def whole_depth(depth: float) -> int:
    """Lean states may have a fractional depth; their start is drawn with the next whole one."""
    return max(2, -int(-depth // 1))
