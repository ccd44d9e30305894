"""How far a network evaluated in floating point can lie from the network of real numbers: an
a-priori bound.

A sum of n products evaluated in any order with rounding unit u errs by at most γ_{n+1}·(Σ|w||x| +
|b|), where
γ_k = k·u/(1 − k·u) (Higham 2002, §3.1, §3.5); the error of x travels on through |W|; ReLU, maxima
and reorderings are
exact and 1-Lipschitz. Covered: any order of summation, fused multiply-adds, results flushed to
zero. Not covered, and
said so in the certificate: TF32 and other lower-precision units, Winograd or FFT convolutions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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
from secateurs.paths.certificates.flows.interval import Interval, Intervals
from secateurs.paths.certificates.flows.pair import Pair, gamma, lift, linear, magnitude, terms

_OFFSET = "β−γm/√"  # the label of a batch norm's bias in the graph
_OWN = torch.finfo(torch.float64).eps


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """ef ≥ |fl(f) − f| and eg ≥ |fl(g) − g|, with the intervals in which f and g lie."""

    ef: Tensor
    eg: Tensor
    box: Intervals


class Rounding:
    """The flow of evaluation errors; fed with a pair (lo, hi). `unit`: half the machine epsilon of
    the evaluation.
    """

    def __init__(self, *, unit: float, tiny: float) -> None:
        self.unit, self.tiny = unit, tiny
        self._interval = Interval(unit=_OWN)

    def input(self, node: Input, value: tuple[Tensor, Tensor]) -> Errors:
        """Inputs are taken as they are: both networks see the same floating-point numbers."""
        zero = torch.zeros_like(value[0])
        return Errors(ef=zero, eg=zero, box=self._interval.input(node, value))

    def affine(self, node: Affine, x: Errors | None, params: Pair) -> Errors:
        """|W|e + γ(|W|(m + e) + Σ|terms of b|)."""
        y = self._interval.affine(node, None if x is None else x.box, params)
        masses = [_bias_mass(node, state) for state in (params.f, params.g)]
        if x is None:
            ef, eg = (gamma(8, self.unit) * mass.expand(1, *node.shape) for mass in masses)
            return Errors(ef=ef, eg=eg, box=y)
        weights = params.weights(node)
        count = (
            terms(node, x.ef, weights[0])
            + 2
            + 8 * any(_computed(s) for s in (node.weight, node.bias))
        )
        b = x.box.bounds
        m = torch.maximum(b.h.abs(), b.l.abs()), torch.maximum(b.gh.abs(), b.gl.abs())
        ef, eg = (
            self._image(node, e, size, magnitude(w), mass, count)
            for e, size, w, mass in zip((x.ef, x.eg), m, weights, masses, strict=True)
        )
        return Errors(ef=ef, eg=eg, box=y)

    def activation(self, node: Activation, x: Errors) -> Errors:
        """ReLU is exact; a leaky one rounds one product."""
        b = x.box.bounds
        stretch, own = max(1.0, abs(node.slope)), self.unit * abs(node.slope)
        ef = x.ef * (stretch + own) + own * torch.maximum(b.h.abs(), b.l.abs())
        eg = x.eg * (stretch + own) + own * torch.maximum(b.gh.abs(), b.gl.abs())
        return Errors(ef=ef, eg=eg, box=self._interval.activation(node, x.box))

    def pool(self, node: Pool, x: Errors) -> Errors:
        """A choice is exact, and moves by no more than the entries do."""
        ef, eg = lift(node.maximum, x.ef), lift(node.maximum, x.eg)
        return Errors(ef=ef, eg=eg, box=self._interval.pool(node, x.box))

    def structural(self, node: Structural, xs: Sequence[Errors]) -> Errors:
        """Copies are exact."""
        ef, eg = (lift(node.function, *(getattr(x, k) for x in xs)) for k in ("ef", "eg"))
        return Errors(ef=ef, eg=eg, box=self._interval.structural(node, [x.box for x in xs]))

    def add(self, node: Add, xs: Sequence[Errors]) -> Errors:
        """The errors add, and the sum rounds."""
        share = gamma(len(xs), self.unit)
        bounds = [x.box.bounds for x in xs]
        ef = sum(
            x.ef + share * (x.ef + torch.maximum(b.h.abs(), b.l.abs()))
            for x, b in zip(xs, bounds, strict=True)
        )
        eg = sum(
            x.eg + share * (x.eg + torch.maximum(b.gh.abs(), b.gl.abs()))
            for x, b in zip(xs, bounds, strict=True)
        )
        return Errors(
            ef=torch.as_tensor(ef),
            eg=torch.as_tensor(eg),
            box=self._interval.add(node, [x.box for x in xs]),
        )

    def _image(
        self, node: Affine, e: Tensor, m: Tensor, w: Tensor | None, mass: Tensor, count: int
    ) -> Tensor:
        own = linear(node, m + e, w) + mass
        return linear(node, e, w) * (1 + 1e-9) + (
            gamma(count, self.unit) * own + count * self.tiny
        ) * (1 + 1e-9)


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
                f"rounding=True knows no error bound for how the {source.describe()[:60]} of"
                f" {node.place} is computed; use rounding='auto'."
            )
    if node.bias is None:
        return torch.zeros((), dtype=torch.float64)
    if isinstance(node.bias, Computed) and node.bias.label.startswith(_OFFSET):
        own = node.bias.args[1]
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
