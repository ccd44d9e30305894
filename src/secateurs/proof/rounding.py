"""How far a network evaluated in floating point can lie from the network of real numbers, and how
far that one lies from the network whose computed weights are the float64 numbers that flows read:
a-priori bounds.

A sum of n products evaluated in any order with rounding unit u errs by at most γ_{n+1}·(Σ|w||x| +
|b|), where γ_k = k·u/(1 − k·u) (Higham 2002, §3.1, §3.5); the error of x travels on through |W|;
ReLU, maxima and reorderings are exact and 1-Lipschitz. Covered: any order of summation, fused
multiply-adds, results flushed to zero. Not covered, as the certificate says: TF32 and other units
of lower precision, Winograd or FFT convolutions.

Computed weights (a folded batch norm, a weight norm) lie within radii of the numbers that are read
(`enclosure`): a radius E adds E(|x| + e).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.errors import UnsupportedOperation
from secateurs.graph import (
    Activation,
    Add,
    Affine,
    Computed,
    Graph,
    Input,
    Node,
    Opaque,
    Pool,
    Source,
    State,
    Structural,
    affines,
)
from secateurs.proof import hardswish
from secateurs.proof.enclosure import enclose
from secateurs.proof.forms import ParameterPair, gamma, lift, linear, magnitude, signed_sum, terms
from secateurs.proof.interval import Interval, Intervals

_OFFSET = "β−γm/√"  # the label of a batch norm's bias in the graph
_OWN = torch.finfo(torch.float64).eps


Radii = Mapping[str, tuple[Tensor | None, Tensor | None]]
"""Around the weight and the bias of each affine node that has some; None for exact numbers."""


def radii_of(graph: Graph, state: State, precision: torch.dtype) -> Radii:
    """How far the weights and biases of a network lie from those that are read: the real numbers,
    and what an evaluation in this precision makes of them.
    """
    found: dict[str, tuple[Tensor | None, Tensor | None]] = {}
    for node in affines(graph):
        weight, bias = (_radius(node, s, state, precision) for s in (node.weight, node.bias))
        if weight is not None or bias is not None:
            found[node.name] = weight, None if bias is None else node.spread(bias)
    return found


def _radius(
    node: Affine, source: Source | None, state: State, precision: torch.dtype
) -> Tensor | None:
    if source is None:
        return None
    try:
        _, radius = enclose(source, state, precision)
    except UnsupportedOperation as error:
        raise UnsupportedOperation(f"{node.place}: {error}") from None
    return radius if bool(radius.any()) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """e ≥ |fl(f) − f|, with the intervals in which f lies."""

    e: Tensor
    box: Intervals


class Rounding:
    """The flow of the evaluation errors of one network; fed with a pair (lo, hi), params is a pair
    of that network with itself.

    dtype: the format of the evaluation; None for real numbers, where only the `radii` of computed
    weights count. Where a value, or a partial sum on the way to it, may leave the range of the
    format, the error is infinite.
    """

    def __init__(self, dtype: torch.dtype | None, radii: Radii) -> None:
        self.unit, self.tiny, self.most = 0.0, 0.0, float("inf")
        if dtype is not None:
            limits = torch.finfo(dtype)
            self.unit, self.tiny, self.most = unit_roundoff(dtype), limits.tiny, limits.max
        self.radii = radii
        self._interval = Interval(unit=_OWN)

    def input(self, node: Input, value: tuple[Tensor, Tensor]) -> Errors:
        """Inputs are taken as they are: both networks see the same floating-point numbers."""
        box = self._interval.input(node, value)
        return Errors(e=self.fits(torch.zeros_like(value[0]), _magnitude(box)), box=box)

    def affine(self, node: Affine, x: Errors | None, params: ParameterPair) -> Errors:
        """|W|e and what the map itself adds."""
        box = self._interval.affine(node, None if x is None else x.box, params)
        weight = params.weights(node)[0]
        if x is None:
            return Errors(e=self.added(node, None, None, params.f), box=box)
        moved = linear(node, x.e, magnitude(weight)) * (1 + 1e-9)
        added = self.added(node, _magnitude(x.box) + x.e, weight, params.f)
        return Errors(e=moved + added, box=box)

    def added(
        self, node: Affine, reach: Tensor | None, weight: Tensor | None, state: State
    ) -> Tensor:
        """What this map adds to the errors of its inputs, whose sizes with these errors are at most
        `reach`: E m + E_b + γ((|W| + E) m + Σ|terms of b| + E_b).
        """
        around, around_bias = self.radii.get(node.name, (None, None))
        off = torch.zeros((), dtype=torch.float64) if around_bias is None else around_bias
        mass = _bias_mass(node, state) + off
        if reach is None:
            e = (off + gamma(8, self.unit) * mass).expand(1, *node.shape)
            return self.fits(e, mass.expand(1, *node.shape))
        # A folded batch norm computes its slope and offset with a few roundings of its own.
        several = 8 * any(_computed(s) for s in (node.weight, node.bias))
        count = terms(node, reach, weight) + 2 + several
        size, moved = magnitude(weight), off
        if size is not None and around is not None:
            size = size + around
            moved = off + linear(node, reach, around)
        # No partial sum is larger than this.
        total = linear(node, reach, size) + mass
        # `tiny` per operation: results below the normal range may be flushed to zero.
        own = gamma(count, self.unit) * total + count * self.tiny
        # This bound is computed in float64 too; 1e-9 covers its own roundings.
        return self.fits((moved + own) * (1 + 1e-9), total)

    def activation(self, node: Activation, x: Errors) -> Errors:
        """ReLU is exact; a leaky one rounds its slope and one product."""
        stretch, own = max(1.0, abs(node.slope)), gamma(2, self.unit) * abs(node.slope)
        e = x.e * (stretch + own) + own * _magnitude(x.box)
        box = self._interval.activation(node, x.box)
        return Errors(e=self.fits(e, _magnitude(box)), box=box)

    def opaque(self, node: Opaque, xs: Sequence[Errors]) -> Errors:
        """A hardswish of some five operations."""
        (x,), box = xs, self._interval.opaque(node, [each.box for each in xs])
        size = _magnitude(box) + hardswish.STEEPEST * x.e
        e = hardswish.STEEPEST * x.e + gamma(16, self.unit) * size + 8 * self.tiny
        # What is divided by 6 in the end.
        return Errors(e=self.fits(e, 8 * (size + _magnitude(x.box) + x.e)), box=box)

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
        return Errors(e=self.fits(e, total), box=box)

    def fits(self, e: Tensor, size: Tensor) -> Tensor:
        """The error, infinite where values of this size may overflow."""
        # Just short of the largest number: a rounded sum may exceed the real one.
        safe = size + e <= self.most * (1 - 4 * self.unit)
        return torch.where(safe, e, torch.full_like(e, torch.inf))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeErrors:
    """What the nodes of one network add to the values of real numbers, node by node of the graph of
    a pair.

    nodes: by the names of that graph, those of the network's own.
    """

    rounding: Rounding
    nodes: Mapping[str, Node]
    state: State

    def of_map(self, node: Affine, reach: Tensor | None, weight: Tensor | None) -> Tensor | float:
        """Of an affine map whose inputs are at most `reach`."""
        own = self.nodes[node.name]
        if not isinstance(own, Affine):
            raise TypeError(f"{node.name} is {type(own).__name__} in the network's own graph.")
        if not self.rounding.unit and own.name not in self.rounding.radii:
            return 0.0
        return self.rounding.added(own, reach, weight, self.state)

    def of_slope(self, slope: float, reach: Tensor) -> Tensor:
        """Of a leaky ReLU: it rounds its slope and one product."""
        return self.rounding.fits(gamma(2, self.rounding.unit) * abs(slope) * reach, reach)

    def of_hardswish(self, reach: Tensor) -> Tensor:
        """Of a hardswish, as `Rounding.opaque`: no result is larger than what enters it."""
        own = gamma(16, self.rounding.unit) * reach + 8 * self.rounding.tiny
        return self.rounding.fits(own, 16 * reach)

    def of_sum(self, count: int, sizes: Tensor) -> Tensor:
        """Of a sum of so many values."""
        return self.rounding.fits(gamma(count, self.rounding.unit) * sizes, sizes)


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
    if node.bias is None:
        return torch.zeros((), dtype=torch.float64)
    if isinstance(node.bias, Computed) and node.bias.label.startswith(_OFFSET):
        own = node.bias.args[1]
        # β − γ·mean/√(v+ε) may cancel: its rounding is relative to both parts, not to their
        # difference.
        beta = torch.zeros(()) if own is None else own(state)
        return node.spread((node.bias(state) - beta).abs() + beta.abs())
    return node.spread(node.bias(state).abs())


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """The value of one network at some inputs as float64 evaluates it; the real one lies within
    `e` of it.
    """

    y: Tensor
    e: Tensor


class Evaluation:
    """The flow of values at single inputs with their errors: at a point nothing but rounding
    widens them. Fed with the inputs, params is the state of one network.
    """

    def __init__(self, radii: Radii) -> None:
        self.radii = radii

    def input(self, node: Input, value: Tensor) -> Near:
        """An input is what it is."""
        return Near(y=value, e=torch.zeros_like(value))

    def affine(self, node: Affine, x: Near | None, params: State) -> Near:
        """|W|e + E|x| + E_b + γ((|W| + E)(|x| + e) + |b| + E_b)."""
        weight, bias = node.weight_in(params), node.bias_in(params)
        around, off = self.radii.get(node.name, (None, None))
        zero = torch.zeros((), dtype=torch.float64)
        mass = zero if bias is None else node.spread(bias).abs()
        off = zero if off is None else off
        if x is None:
            y = node.apply(None, weight, bias).unsqueeze(0)
            return Near(y=y, e=off.expand_as(y))
        y = lift(lambda t: node.apply(t, weight, bias), x.y)
        count = terms(node, x.y, weight) + 2
        share, size = gamma(count, _OWN / 2), magnitude(weight)
        moved = off
        if size is not None and around is not None:
            size, moved = size + around, off + linear(node, x.y.abs(), around)
        e = linear(node, x.e + share * (x.y.abs() + x.e), size) + share * (mass + off) + moved
        return Near(y=y, e=e * (1 + 1e-9) + count * torch.finfo(torch.float64).tiny)

    def activation(self, node: Activation, x: Near) -> Near:
        """ReLU is exact; a leaky one rounds one product."""
        own = _OWN * abs(node.slope)
        e = x.e * (max(1.0, abs(node.slope)) + own) + own * x.y.abs()
        return Near(y=lift(node.apply, x.y), e=e)

    def opaque(self, node: Opaque, xs: Sequence[Near]) -> Near:
        """A hardswish."""
        hardswish.check(node)
        y = lift(node.function, xs[0].y)
        e = hardswish.STEEPEST * xs[0].e + gamma(16, _OWN) * y.abs()
        return Near(y=y, e=e * (1 + 1e-9) + 8 * torch.finfo(torch.float64).tiny)

    def pool(self, node: Pool, x: Near) -> Near:
        """A choice is exact, and moves by no more than the entries do."""
        return Near(y=lift(node.apply, x.y), e=lift(node.maximum, x.e))

    def structural(self, node: Structural, xs: Sequence[Near]) -> Near:
        """Copies are exact."""
        y, e = (lift(node.function, *(getattr(x, k) for x in xs)) for k in ("y", "e"))
        return Near(y=y, e=e)

    def add(self, node: Add, xs: Sequence[Near]) -> Near:
        """The errors add, and the sum rounds."""
        e = sum((x.e for x in xs), torch.zeros(()))
        total = sum((x.y.abs() for x in xs), e)
        return Near(y=signed_sum(node, [x.y for x in xs]), e=e + gamma(len(xs), _OWN) * total)
