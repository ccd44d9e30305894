"""A path norm as a number, with its logarithm and what was assumed."""

import math

import torch
from torch import Tensor

from secateurs.paths.norms.scaled import ZERO, Scaled, two_to


class PathNorm(float):
    """‖Φ‖_q as a float (inf where float64 overflows), with what goes with it.

    Attributes:
        log2: Its base-2 logarithm, finite at any depth (−inf for a norm of zero).
        q: The exponent of the norm.
        per_output: log2 of the norm of the paths that end in each output neuron.
        inputs, biases: The norms of the paths that start in an input, and in a bias; with
            `split=True`.
        is_upper_bound: A leaky relu was bounded by max(1, |slope|).
        assumptions: What was assumed, in words.
    """

    log2: float
    q: float
    per_output: Tensor
    inputs: "PathNorm | None"
    biases: "PathNorm | None"
    is_upper_bound: bool
    assumptions: tuple[str, ...]

    def __new__(
        cls,
        mass: Scaled,
        *,
        q: float,
        bounded: tuple[str, ...],
        assumptions: tuple[str, ...] = (),
    ) -> "PathNorm":
        self = super().__new__(
            # For q = 1 the float itself, without a detour through a logarithm that
            # loses digits.
            cls,
            total(mass) if q == 1 else exp2(float(mass.log2_sum()) / q),
        )
        self.log2, self.q = float(mass.log2_sum()) / q, q
        self.per_output = (
            (torch.log2(mass.value) + (0 if mass.exponent == ZERO else mass.exponent))
            / q
        )[0]
        self.inputs = self.biases = None
        self.is_upper_bound = bool(bounded)
        self.assumptions = (*bounded, *assumptions)
        return self


def total(mass: Scaled) -> float:
    """The sum of all entries as a float; inf where it overflows."""
    return float(mass.value.sum()) * two_to(mass.exponent)


def exp2(log2: float) -> float:
    """2^log2 as a float; inf where it overflows."""
    return math.inf if log2 >= 1024 else 2.0**log2
