"""How far a network evaluated in floating point can lie from the network of real numbers, and how
far that one lies from the network whose computed weights are the float64 numbers that flows read:
a-priori bounds.

A sum S = Σ tᵢ of n products evaluated with rounding unit u rounds each product and n − 1 sums of
some of the tᵢ. In any order such a sum of some is at most (|S| + Σ|tᵢ|)/2, to which the larger of
its positive and its negative terms adds up, and products that are zero round nothing. So the error
is at most γ_{n−1}·((|S| + Σ|tᵢ|)/2 + γ_n Σ|tᵢ|) + γ_1 Σ|tᵢ|, where γ_k = k·u/(1 − k·u) (after
Higham 2002, §4.2). ReLU, maxima and reorderings are exact and 1-Lipschitz. Covered: any order of
summation, fused multiply-adds, results flushed to zero. Not covered, as the certificate says: TF32
and other units of lower precision, Winograd or FFT convolutions.

Computed weights (a folded batch norm, a weight norm) lie within radii of the numbers that are read
(`enclosure`): a radius E adds E(|x| + e).

The error e of x travels on through |W|, which multiplies it by 20 or so in each block of a residual
network. But where a neuron keeps its sign, the evaluated network differs from that of real numbers
by a linear map of what its nodes add: at most Σ_v |L_v| r_v for what r node v adds, with L from one
backward pass. A neuron that may change its sign does not add more than (e − |z|)/2 to a line. So
passes are made from the neurons whose sign |W| e leaves in doubt, where the values of the network
of real numbers are known well; from all of a layer where those are many, since |W| e would let the
next layers have more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    Opaque,
    Pool,
    Source,
    State,
    Structural,
    affines,
)
from secateurs.proof import hardswish
from secateurs.proof.enclosure import enclose
from secateurs.proof.forms import (
    Bounds,
    ParameterPair,
    Widened,
    gamma,
    lift,
    linear,
    magnitude,
    signed_sum,
    terms,
)
from secateurs.proof.interval import Interval, Known
from secateurs.proof.patches import entrywise
from secateurs.proof.planes import chosen, pick, runner_up

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
    """e ≥ |fl(f) − f|, with the value of the flow that bounds f.

    Attributes:
        tape: On it passes find fl(f) − f, but for what each entry has of its own; None where no
            passes are made.
        own: At most that, whatever other entries have.
    """

    e: Tensor
    box: Any
    tape: Tensor | None
    own: Tensor


_DOUBTFUL = 0.05
"""Where more of a layer's neurons may change their sign, all get a pass. On a ResNet-20 with 2 or
15 % more passes are made in the end, and with 30 % the bounds of the next layers explode.
"""

_ROWS = 2**18
"""Entries of the widest node in the passes that are made at once: 2 MB, which stay in the cache."""

_OWN_SHARE = 2**16
"""Roundings of our own in one step of a pass, many more than there can be."""


class Rounding:
    """The flow of the evaluation errors of one network; fed with a pair (lo, hi), params is a pair
    of that network with itself.

    dtype: the format of the evaluation; None for real numbers, where only the `radii` of computed
    weights count. Where a value, or a partial sum on the way to it, may leave the range of the
    format, the error is infinite. known: the values of real numbers on one box, node by node, on
    which passes stand; without it intervals bound them, and no pass is made. effort: entries of all
    passes. pace: the time for them.
    """

    def __init__(
        self,
        dtype: torch.dtype | None,
        radii: Radii,
        *,
        known: Mapping[str, Bounds] | None = None,
        effort: float = 0.0,
        pace: Any = None,
    ) -> None:
        self.unit, self.tiny, self.most = 0.0, 0.0, float("inf")
        if dtype is not None:
            limits = torch.finfo(dtype)
            self.unit, self.tiny, self.most = unit_roundoff(dtype), limits.tiny, limits.max
        self.radii = radii
        self.passes = known is not None
        self.left, self.pace = effort, pace
        self._inner: Any = Interval(unit=_OWN) if known is None else Known(known)
        self._cells = 0
        self._widest = 1

    def input(self, node: Input, value: tuple[Tensor, Tensor]) -> Errors:
        """Inputs are taken as they are: both networks see the same floating-point numbers."""
        box = self._inner.input(node, value)
        # What passes reach: all that the nodes have added, each times the slope there.
        self._one = value[0].new_ones(1).requires_grad_(self.passes)
        e = self.fits(torch.zeros_like(value[0]), self._size(box))
        return self._value(e, box, self._blank(e), e)

    def affine(self, node: Affine, x: Errors | None, params: ParameterPair) -> Errors:
        """|W|e and what the map itself adds."""
        box = self._inner.affine(node, None if x is None else x.box, params)
        weight = params.weights(node)[0]
        if x is None:
            e = self.added(node, None, None, params.f)
            return self._value(e, box, self._blank(e), e)
        moved = linear(node, x.e, magnitude(weight)) * (1 + 1e-9)
        reach, size = self._size(x.box) + x.e, self._size(box) + moved
        added = self.added(node, reach, weight, params.f, size)
        own = added + self._lost(moved, terms(node, x.e, weight) if self.passes else 0)
        if weight is None or entrywise(node):
            tape, own = x.tape, own + linear(node, x.own, magnitude(weight)) * (1 + 1e-9)
        else:
            tape = self._taped(x.tape, x.own)
        tape = None if tape is None else linear(node, tape, weight)
        return self._value(moved + added, box, tape, own)

    def added(
        self,
        node: Affine,
        reach: Tensor | None,
        weight: Tensor | None,
        state: State,
        size: Tensor | float = float("inf"),
    ) -> Tensor:
        """What this map adds to the errors of its inputs, whose sizes with these errors are at most
        `reach`, and those of W x + b at most `size`: E m + E_b, and the rounding of a sum whose
        terms add up to (|W| + E) m + Σ|terms of b| + E_b.
        """
        around, around_bias = self.radii.get(node.name, (None, None))
        off = torch.zeros((), dtype=torch.float64) if around_bias is None else around_bias
        mass = _bias_mass(node, state) + off
        if reach is None:
            e = (off + gamma(8, self.unit) * mass).expand(1, *node.shape)
            return self.fits(e, mass.expand(1, *node.shape))
        # A folded batch norm computes its slope and offset with a few roundings of its own.
        several = 8 * any(_computed(s) for s in (node.weight, node.bias))
        most, moved = magnitude(weight), off
        if most is not None and around is not None:
            most = most + around
            moved = off + linear(node, reach, around)
        total = linear(node, reach, most) + mass
        # A product with zero is zero, and to add it rounds nothing.
        there = None if most is None else (most != 0).to(most)
        count = linear(node, (reach != 0).to(reach), there) + 1
        # No partial sum is larger than this, but for what rounding has added to it.
        partial = (total + total.minimum(size + moved)) / 2
        share = count * self.unit
        share = torch.where(share < 1, share / (1 - share), torch.inf) if self.unit else share
        own = share * (partial + 2 * share * total) + gamma(2 + several, self.unit) * total
        # `tiny` per operation: results below the normal range may be flushed to zero.
        own = own + (count + 1 + several) * self.tiny
        # This bound is computed in float64 too; 1e-9 covers its own roundings.
        return self.fits((moved + own) * (1 + 1e-9), total)

    def activation(self, node: Activation, x: Errors) -> Errors:
        """ReLU is exact; a leaky one rounds its slope and one product. For z in [l, h] and |d| ≤ e,
        relu(z + d) − relu(z) is within (e − |m|)/2 of d(e + m)/2e, where m is the point of [l, h]
        next to zero; where |m| ≥ e it is d or 0.
        """
        b, bend = self._inner.bounds(x.box), node.slope
        e = self._narrowed(x, b)
        on, off = b.l - e >= 0, b.h + e <= 0
        near = torch.zeros_like(e).clamp(b.l, b.h)
        # NaN of an infinite e: any slope will do.
        line = ((e + near) / (2 * e)).clamp(0, 1).nan_to_num(nan=0.5)
        line = torch.where(on, 1.0, torch.where(off, 0.0, line))
        half = torch.where(on | off, 0.0, (e - near.abs()) / 2)
        slope = bend + (1 - bend) * line
        own = gamma(2, self.unit) * abs(bend) * (self._size(x.box) + e)
        moved = torch.where(off, abs(bend), max(1.0, abs(bend))) * e
        box = self._inner.activation(node, x.box)
        tape = None if x.tape is None else slope * x.tape
        apart = slope.abs() * x.own + abs(1 - bend) * half + self._lost(e * (1 + abs(bend)))
        e = self.fits((moved + own) * (1 + 1e-9), self._size(box))
        return self._bent(e, box, tape, (apart + own) * (1 + 1e-9))

    def opaque(self, node: Opaque, xs: Sequence[Errors]) -> Errors:
        """A hardswish of some five operations."""
        (x,), box = xs, self._inner.opaque(node, [each.box for each in xs])
        size = self._size(box) + hardswish.STEEPEST * x.e
        e = hardswish.STEEPEST * x.e + gamma(16, self.unit) * size + 8 * self.tiny
        # What is divided by 6 in the end.
        e = self.fits(e, 8 * (size + self._size(x.box) + x.e))
        return self._bent(e, box, self._blank(e), e)

    def pool(self, node: Pool, x: Errors) -> Errors:
        """A choice is exact, and moves by no more than the entries do; by what the leading entry
        does where no other can lead.
        """
        box, e = self._inner.pool(node, x.box), lift(node.maximum, x.e)
        if x.tape is None or node.rank > 1:
            return self._bent(e, box, self._blank(e), e)
        b = self._inner.bounds(x.box)
        sure = chosen(node, b.l, b.l - x.e) > runner_up(node, b.l, b.h + x.e)
        e = torch.where(sure, chosen(node, b.l, x.e), e)
        own = torch.where(sure, chosen(node, b.l, x.own) + self._lost(e), e)
        return self._bent(e, box, pick(node, b.l, x.tape) * sure, own * (1 + 1e-9))

    def structural(self, node: Structural, xs: Sequence[Errors]) -> Errors:
        """Copies are exact."""
        box = self._inner.structural(node, [x.box for x in xs])
        e, own = (lift(node.function, *(getattr(x, k) for x in xs)) for k in ("e", "own"))
        tapes = [x.tape for x in xs if x.tape is not None]
        tape = lift(node.function, *tapes) if tapes else None
        return self._value(e, box, tape, own + self._lost(e))

    def add(self, node: Add, xs: Sequence[Errors]) -> Errors:
        """The errors add, and the sum rounds."""
        box = self._inner.add(node, [x.box for x in xs])
        moved = sum((x.e for x in xs), torch.zeros(()))
        total = sum((self._size(x.box) for x in xs), moved)
        # With two terms nothing but the sum itself is rounded.
        count = len(xs) - 1
        partial = (self._size(box) + moved).minimum(total) if count == 1 else total
        added = gamma(count, self.unit) * partial
        own = sum((x.own for x in xs), added) + self._lost(moved)
        tapes = [x.tape for x in xs if x.tape is not None]
        tape = signed_sum(node, tapes) if tapes else None
        return self._value(self.fits(moved + added, total) * (1 + 1e-9), box, tape, own)

    def fits(self, e: Tensor, size: Tensor) -> Tensor:
        """The error, infinite where values of this size may overflow."""
        # Just short of the largest number: a rounded sum may exceed the real one.
        safe = size + e <= self.most * (1 - 4 * self.unit)
        return torch.where(safe, e, torch.full_like(e, torch.inf))

    def narrowest(self, y: Errors) -> Tensor:
        """The errors of the outputs, by passes from all of them."""
        return self._passed(y, torch.ones_like(y.e, dtype=torch.bool))

    def _size(self, box: Any) -> Tensor:
        b: Bounds = self._inner.bounds(box)
        return torch.maximum(b.h.abs(), b.l.abs())

    def _lost(self, moved: Tensor, count: int = 0) -> Tensor | float:
        """The roundings of a pass in one step, as a share of what the step moves."""
        return gamma(_OWN_SHARE + count, _OWN) * moved if self.passes else 0.0

    def _bent(self, e: Tensor, box: Any, tape: Tensor | None, own: Tensor) -> Errors:
        """Several nodes may read the value: what its entries have of their own is put on the
        tape.
        """
        return self._value(e, box, self._taped(tape, own), torch.zeros_like(own))

    def _value(self, e: Tensor, box: Any, tape: Tensor | None, own: Tensor) -> Errors:
        self._cells += e.numel()
        self._widest = max(self._widest, e.numel())
        return Errors(e=e, box=box, tape=tape, own=own)

    def _blank(self, e: Tensor) -> Tensor | None:
        return torch.zeros_like(e) if self.passes else None

    def _taped(self, tape: Tensor | None, own: Tensor) -> Tensor | None:
        if tape is None or not bool(own.any()):
            return tape
        return Widened.apply(tape, self._one, own)  # type: ignore[no-any-return, no-untyped-call]

    def _narrowed(self, x: Errors, b: Bounds) -> Tensor:
        """The error after passes from the neurons whose sign it leaves in doubt."""
        # Written so that a NaN counts as doubtful.
        off = b.h + x.e <= 0
        doubtful = ~(off | (b.l - x.e >= 0))
        many = float(doubtful.sum()) > _DOUBTFUL * doubtful.numel()
        return self._passed(x, ~off if many else doubtful)

    def _passed(self, x: Errors, wanted: Tensor) -> Tensor:
        """The error, or what passes from the wanted entries find where that is less."""
        e = x.e.flatten().clone()
        if x.tape is None or not x.tape.requires_grad:
            return x.e
        size = max(1, _ROWS // self._widest)
        every = wanted.flatten().nonzero().flatten()
        for index in torch.split(every, size) if len(every) else ():
            work = len(index) * self._cells
            if work > self.left or not self.pace.allows(work):
                break
            self.left -= work
            rows = e.new_zeros(len(index), len(e)).scatter_(1, index.unsqueeze(1), 1.0)
            (found,) = torch.autograd.grad(
                x.tape,
                self._one,
                rows.reshape(-1, *x.tape.shape),
                is_grads_batched=True,
                retain_graph=True,
            )
            # Sums of terms that are not negative, and what fell below the range of our own numbers.
            share = 1 + 4 * gamma(self._cells + _OWN_SHARE, _OWN)
            found = (found.flatten() + x.own.flatten()[index]) * share + 2.0**-900
            # `fmin` takes the other where passes overflow.
            e[index] = torch.fmin(e[index], found)
            self.pace.done("evaluation: passes from neurons")
        return e.reshape(x.e.shape)


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
