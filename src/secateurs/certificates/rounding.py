"""How far a network evaluated in floating point can lie from the network of real numbers: an
a-priori bound.

A sum of n products evaluated in any order with rounding unit u errs by at most γ_{n+1}·(Σ|w||x| +
|b|), where γ_k = k·u/(1 − k·u) (Higham 2002, §3.1, §3.5); the error of x travels on through |W|;
ReLU, maxima and reorderings are exact and 1-Lipschitz. Covered: any order of summation, fused
multiply-adds, results flushed to zero. Not covered, as the certificate says: TF32 and other units
of lower precision, Winograd or FFT convolutions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.certificates.forms import ParameterPair, gamma, lift, linear, magnitude, terms
from secateurs.certificates.interval import Interval, Intervals
from secateurs.errors import ArgumentError
from secateurs.graph import (
    Activation,
    Add,
    Affine,
    Computed,
    Input,
    Pool,
    Source,
    State,
    Structural,
)

_OFFSET = "β−γm/√"  # the label of a batch norm's bias in the graph
_OWN = torch.finfo(torch.float64).eps


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """e ≥ |fl(f) − f|, with the intervals in which f lies."""

    e: Tensor
    box: Intervals


class Rounding:
    """The flow of the evaluation errors of one network; fed with a pair (lo, hi), params is a pair
    of that network with itself.

    Where a value, or a partial sum on the way to it, may leave the range of the format, the error
    is infinite.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        limits = torch.finfo(dtype)
        self.unit, self.tiny, self.most = (
            unit_roundoff(dtype),
            limits.tiny,
            limits.max,
        )
        self._interval = Interval(unit=_OWN)

    def input(self, node: Input, value: tuple[Tensor, Tensor]) -> Errors:
        """Inputs are taken as they are: both networks see the same floating-point numbers."""
        box = self._interval.input(node, value)
        return Errors(e=self._fits(torch.zeros_like(value[0]), _magnitude(box)), box=box)

    def affine(self, node: Affine, x: Errors | None, params: ParameterPair) -> Errors:
        """|W|e + γ(|W|(m + e) + Σ|terms of b|)."""
        box = self._interval.affine(node, None if x is None else x.box, params)
        mass = _bias_mass(node, params.f)
        if x is None:
            e = gamma(8, self.unit) * mass.expand(1, *node.shape)
            return Errors(e=self._fits(e, mass.expand(1, *node.shape)), box=box)
        weight = params.weights(node)[0]
        # A folded batch norm computes its slope and offset with a few roundings of its own.
        several = 8 * any(_computed(s) for s in (node.weight, node.bias))
        count = terms(node, x.e, weight) + 2 + several
        size = magnitude(weight)
        # No partial sum is larger than this.
        total = linear(node, _magnitude(x.box) + x.e, size) + mass
        # `tiny` per operation: results below the normal range may be flushed to zero.
        own = gamma(count, self.unit) * total + count * self.tiny
        # This bound is computed in float64 too; 1e-9 covers its own roundings.
        e = (linear(node, x.e, size) + own) * (1 + 1e-9)
        return Errors(e=self._fits(e, total), box=box)

    def activation(self, node: Activation, x: Errors) -> Errors:
        """ReLU is exact; a leaky one rounds one product."""
        stretch, own = max(1.0, abs(node.slope)), self.unit * abs(node.slope)
        e = x.e * (stretch + own) + own * _magnitude(x.box)
        box = self._interval.activation(node, x.box)
        return Errors(e=self._fits(e, _magnitude(box)), box=box)

    def pool(self, node: Pool, x: Errors) -> Errors:
        """A choice is exact, and moves by no more than the entries do."""
        return Errors(e=lift(node.maximum, x.e), box=self._interval.pool(node, x.box))

    def structural(self, node: Structural, xs: Sequence[Errors]) -> Errors:
        """Copies are exact."""
        box = self._interval.structural(node, [x.box for x in xs])
        return Errors(e=lift(node.function, *(x.e for x in xs)), box=box)

    def add(self, node: Add, xs: Sequence[Errors]) -> Errors:
        """The errors add, and the sum rounds."""
        total = sum((_magnitude(x.box) + x.e for x in xs), torch.zeros(()))
        e = sum((x.e for x in xs), torch.zeros(())) + gamma(len(xs), self.unit) * total
        box = self._interval.add(node, [x.box for x in xs])
        return Errors(e=self._fits(e, total), box=box)

    def _fits(self, e: Tensor, size: Tensor) -> Tensor:
        """The error, infinite where values of this size may overflow."""
        # Just short of the largest number: a rounded sum may exceed the real one.
        safe = size + e <= self.most * (1 - 4 * self.unit)
        return torch.where(safe, e, torch.full_like(e, torch.inf))


def _magnitude(box: Intervals) -> Tensor:
    bounds = box.bounds
    return torch.maximum(bounds.h.abs(), bounds.l.abs())


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number of this format."""
    return torch.finfo(dtype).eps / 2


def _computed(source: Source | None) -> bool:
    return source is not None and source.direct is None


def _bias_mass(node: Affine, state: State) -> Tensor:
    """Σ |terms| from which the bias is computed: |b| itself, or |β| + |γ·mean/√(var+ε)| of a batch
    norm.
    """
    for source in (node.weight, node.bias):
        if source is not None and not _known(source):
            raise ArgumentError(
                f"rounding=True has no error bound for the way the {source.describe()[:60]} of"
                f" {node.place} is computed; use rounding='auto'."
            )
    if node.bias is None:
        return torch.zeros((), dtype=torch.float64)
    if isinstance(node.bias, Computed) and node.bias.label.startswith(_OFFSET):
        own = node.bias.args[1]
        # β − γ·mean/√(v+ε) may cancel: its rounding is relative to both parts, not to their
        # difference.
        beta = torch.zeros(()) if own is None else own(state)
        return node.spread((node.bias(state) - beta).abs() + beta.abs())
    return node.spread(node.bias(state).abs())


def _known(source: Source) -> bool:
    """Tensors themselves, their multiples, and what batch norm computes: a few roundings per
    entry.
    """
    if source.direct is not None or all(role == "factor" for role in source.roles.values()):
        return True
    return isinstance(source, Computed) and source.label.startswith((_OFFSET, "γ/√(v+", "rsqrt"))
