"""Path mass: how much of ‖Φ‖_q^q flows into, through and out of every neuron and weight.

The flow runs forward and keeps a local autograd tape per node; `Tape.pull` then runs backward. Both
directions carry exponents of their own, so that mass shares are finite at any depth. One forward,
one backward.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor, nn

from secateurs.graph import (
    Activation,
    Add,
    Affine,
    Example,
    Graph,
    Input,
    Pool,
    State,
    Structural,
    capture,
)

# Non-negative tensors with a power-of-two exponent: value · 2^exponent, so that no depth
# overflows.

# Wide enough that most tensors are never touched, narrow enough that a product of two
# mantissas and a sum over millions stay far from 2^1024.
LIMIT = 256
"""Mantissas are rescaled when their largest entry leaves [2^-256, 2^256]."""

ZERO = -(10**12)
"""The exponent of an all-zero tensor: it never decides an alignment."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """value · 2^exponent. The scalings are exact; only entries 2^-1000 below the largest can be
    lost.
    """

    value: Tensor
    exponent: int = 0

    def log2_sum(self) -> Tensor:
        """log₂ of the sum of all entries, differentiable; −inf for zero."""
        return torch.log2(self.value.sum()) + (self.exponent if self.exponent != ZERO else 0)

    def plain(self) -> Tensor:
        """The tensor itself; inf where float64 cannot hold it."""
        return self.value * two_to(self.exponent) if self.exponent else self.value


def two_to(exponent: int) -> float:
    """2^exponent as a float: 0 or inf beyond its range."""
    # ldexp would return 0 below the smallest subnormal 2^-1074, and raises on overflow.
    if exponent < -1100:
        return 0.0
    return math.ldexp(1.0, exponent) if exponent < 1024 else math.inf


def rescale(value: Tensor, exponent: int = 0) -> Scaled:
    """Move the magnitude of the largest entry into the exponent when it leaves the safe range."""
    top = _largest(value)
    # Zeros have no exponent.
    if top == 0:
        return Scaled(value, ZERO)
    if 2.0**-LIMIT <= top <= 2.0**LIMIT or not math.isfinite(top):
        return Scaled(value, exponent)
    shift = math.frexp(top)[1]
    half = shift // 2  # in two steps: 2^1074 itself is not a float
    return Scaled(value * 2.0**-half * 2.0 ** (half - shift), exponent + shift)


def _largest(value: Tensor) -> float:
    """The largest magnitude; 0 if there are no entries, NaN if one is."""
    if not value.numel():
        return 0.0
    # One pass that writes nothing: |value| would be a tensor as large as the value.
    low, high = map(float, value.detach().aminmax())
    return max(-low, high)


def align(parts: Sequence[Scaled]) -> tuple[list[Tensor], int]:
    """The mantissas under one exponent, the largest."""
    exponent = max(part.exponent for part in parts)
    same = [
        # Most of the time they agree, and no pass over the tensor is needed.
        p.value if p.exponent == exponent else p.value * two_to(p.exponent - exponent)
        for p in parts
    ]
    return same, exponent


def add_scaled(*parts: Scaled) -> Scaled:
    """Σ parts, broadcasting."""
    values, exponent = align(parts)
    total = values[0]
    for value in values[1:]:
        total = total + value
    return rescale(total, exponent)


def power(weight: Tensor, q: float) -> Scaled:
    """|weight|^q, scaled before the power is taken; q = 0 marks the non-zero entries."""
    if q == 0:
        return rescale((weight != 0).to(weight.dtype))
    scaled = rescale(weight.abs())
    if q == 1 or scaled.exponent == ZERO:
        return scaled
    top = _largest(scaled.value)
    shift = math.frexp(top)[1]
    # For a q that is no integer the exponent splits: its whole part goes outside,
    # 2^rest into the mantissa.
    exponent, rest = divmod((scaled.exponent + shift) * q, 1)
    return Scaled((scaled.value * 2.0**-shift) ** q * 2.0**rest, int(exponent))


# The path norm: |θ|^q through the graph in which every maximum is a sum.


class NormFlow:
    """At every neuron v: Σ over the paths p ending in v of |Φ_p|^q · |start|^q.

    Feed ones for ‖Φ‖_q^q, zeros for the paths that start in a bias; `biases=False` leaves those
    out.
    """

    def __init__(self, q: float = 1, *, biases: bool = True) -> None:
        self.q, self.biases = q, biases

    def input(self, node: Input, value: Tensor) -> Scaled:
        """|value|^q."""
        return power(value, self.q)

    def affine(self, node: Affine, x: Scaled | None, params: State) -> Scaled:
        """|W|^q x + |b|^q."""
        bias = node.bias_in(params) if self.biases else None
        parts = [] if x is None else [through(node, x, node.weight_in(params), self.q)]
        if bias is not None:
            parts.append(spread_bias(node, power(bias, self.q)))
        if not parts:
            return Scaled(torch.zeros(node.shape, dtype=torch.float64), ZERO)
        return add_scaled(*parts)

    def activation(self, node: Activation, x: Scaled) -> Scaled:
        """Nothing for relu; a leaky relu grows by at most max(1, |slope|)."""
        # Not rescaled: one factor of a slope cannot leave the range.
        return Scaled(x.value * growth(node, self.q), x.exponent)

    def pool(self, node: Pool, x: Scaled) -> Scaled:
        """The sum over each window."""
        return rescale(node.total(x.value), x.exponent)

    def structural(self, node: Structural, xs: Sequence[Scaled]) -> Scaled:
        """The same reordering, under one exponent."""
        # One exponent for the result: a reordering mixes entries of its inputs.
        values, exponent = align(xs)
        return Scaled(node.function(*values), exponent)

    def add(self, node: Add, xs: Sequence[Scaled]) -> Scaled:
        """The sum, whatever the signs."""
        return add_scaled(*xs)


def through(node: Affine, x: Scaled, weight: Tensor | None, q: float = 1) -> Scaled:
    """linear(x, |weight|^q)."""
    if weight is None:
        return Scaled(x.value.expand(node.shape), x.exponent)
    scaled = power(weight, q)
    return rescale(node.linear(x.value, scaled.value), x.exponent + scaled.exponent)


def spread_bias(node: Affine, bias: Scaled) -> Scaled:
    """The bias in the shape of the result."""
    return Scaled(node.spread(bias.value).expand(node.shape), bias.exponent)


def growth(node: Activation, q: float = 1) -> float:
    """The largest |f(x)/x|^q of the activation."""
    return float(max(1.0, abs(node.slope)) ** q)


# What one node leaves on the tape, and the mass that is read off it.


@dataclass(frozen=True, slots=True, kw_only=True)
class TapeStep:
    """One node on the tape: leaves, result, and the exponents that the mantissas leave out."""

    result: Tensor | None
    leaves: tuple[Tensor, ...]
    shifts: tuple[int, ...]
    names: tuple[str, ...]
    weight: Scaled | None = None
    bias: Scaled | None = None
    x_exponent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mass:
    """The mass of one affine node: what flows through its weights, what starts in its biases."""

    weight: Scaled | None
    bias: Scaled | None
    bias_gradient: Scaled | None


# Gradients through one node of the tape, and the mass of its weights and biases.


def pull_through(step: TapeStep, out: Scaled) -> list[tuple[str, Scaled]]:
    """The gradients for the inputs of a node without parameters."""
    # Nothing was computed, or nothing arrives: a relu passes on what it is given.
    if step.result is None:
        return [(name, out) for name in step.names]
    gradients = torch.autograd.grad(step.result, step.leaves, out.value)
    return [(name, rescale(g, out.exponent)) for name, g in zip(step.names, gradients, strict=True)]


def pull_affine(node: Affine, step: TapeStep, out: Scaled) -> tuple[Mass, list[tuple[str, Scaled]]]:
    """Mass of weights and biases, and the gradient for the input."""
    bias_gradient = mass_bias = None
    if step.bias is not None:
        shape = node.spread(step.bias.value).shape
        bias_gradient = Scaled(
            # The gradient of a broadcast is a sum over what was repeated.
            out.value.sum_to_size(shape).reshape(step.bias.value.shape),
            out.exponent,
        )
        mass_bias = rescale(
            bias_gradient.value * step.bias.value, out.exponent + step.bias.exponent
        )
    wanted = [leaf for leaf in step.leaves if leaf.requires_grad]
    if step.result is None or not wanted:
        return Mass(weight=None, bias=mass_bias, bias_gradient=bias_gradient), []
    gradients = dict(
        zip(
            map(id, wanted),
            torch.autograd.grad(step.result, wanted, out.value),
            strict=True,
        )
    )
    pulled = []
    if id(step.leaves[0]) in gradients:
        pulled.append(
            (
                step.names[0],
                rescale(gradients[id(step.leaves[0])], out.exponent + step.shifts[0]),
            )
        )
    mass = None
    if step.weight is not None and id(step.weight.value) in gradients:
        # |θ|·∂/∂|θ|: the mass that flows through each weight, in place to save a copy.
        through = gradients[id(step.weight.value)].mul_(step.weight.value.detach())
        mass = Scaled(through, out.exponent + step.x_exponent + step.weight.exponent)
    return Mass(weight=mass, bias=mass_bias, bias_gradient=bias_gradient), pulled


# The tape of a mass flow, and the way back along it: the mass of every weight and bias.


@dataclass(slots=True)
class Tape:
    """What `MassFlow` recorded."""

    graph: Graph
    steps: dict[str, TapeStep] = field(default_factory=dict)
    marks_only: bool = False

    def pull(self, output: Scaled) -> dict[str, Mass]:
        """Run backward from the sum of the output: the mass of every affine node."""
        # The norm is a sum over outputs, so the gradient at each is 1.
        flow_out = {self.graph.output: Scaled(torch.ones_like(output.value), 0)}
        masses: dict[str, Mass] = {}
        for node in reversed(self.graph.nodes):
            # Popped, so that nothing is kept longer than needed.
            out = flow_out.pop(node.name, None)
            step = self.steps.pop(node.name, None)
            if out is None:
                continue
            # Marked at each node: entries far below the largest would be lost in the
            # end.
            out = mark_positive(out) if self.marks_only else out
            if step is None:
                continue
            if isinstance(node, Affine):
                masses[node.name], pulled = pull_affine(node, step, out)
            else:
                pulled = pull_through(step, out)
            for name, gradient in pulled:
                flow_out[name] = (
                    add_scaled(flow_out[name], gradient) if name in flow_out else gradient
                )
        return masses


def mark_positive(scaled: Scaled) -> Scaled:
    """1 where the value is positive."""
    return rescale((scaled.value > 0).to(scaled.value.dtype))


class MassFlow:
    """The path norm once more, recording what the backward pass needs.

    With q = 0 only marks travel, 1 where a path of non-zero weights arrives, so that nothing can
    underflow.
    """

    def __init__(self, graph: Graph, q: float = 1) -> None:
        self.q = q
        self.tape = Tape(graph, marks_only=q == 0)

    def input(self, node: Input, value: Tensor) -> "Flowing":
        """|value|^q."""
        return self._record(node.name, power(value, self.q), None)

    def affine(self, node: Affine, x: "Flowing | None", params: State) -> "Flowing":
        """|W|^q x + |b|^q, with leaves for x and |W|^q."""
        raw = node.bias_in(params)
        bias = None if raw is None else power(raw.detach(), self.q)
        parts = [] if bias is None else [spread_bias(node, bias)]
        if x is None:
            step = TapeStep(result=None, leaves=(), shifts=(), names=(), bias=bias)
            return self._record(node.name, parts[0] if parts else _zeros(node), step)
        linear, step = self._linear(node, x, params, bias)
        total = _with_bias(linear, parts[0], step) if parts else linear
        return self._record(node.name, total, step)

    def activation(self, node: Activation, x: "Flowing") -> "Flowing":
        """A factor, usually 1."""
        factor = growth(node, self.q)
        if factor == 1:
            # For relu nothing is computed here, nor looked at on the way back.
            step = TapeStep(result=None, leaves=(), shifts=(), names=(x.name,))
            return self._record(node.name, x.scaled, step)
        return self._local(node.name, lambda t: t * factor, [x])

    def pool(self, node: Pool, x: "Flowing") -> "Flowing":
        """The sum over each window."""
        return self._local(node.name, node.total, [x])

    def structural(self, node: Structural, xs: "Sequence[Flowing]") -> "Flowing":
        """The same reordering."""
        return self._local(node.name, node.function, xs)

    def add(self, node: Add, xs: "Sequence[Flowing]") -> "Flowing":
        """The sum."""
        return self._local(
            node.name,
            lambda *ts: torch.stack(ts).sum(0) if len(ts) > 2 else ts[0] + ts[1],
            xs,
        )

    def _linear(
        self, node: Affine, x: "Flowing", params: State, bias: Scaled | None
    ) -> tuple[Scaled, TapeStep]:
        raw = node.weight_in(params)
        # Detached: the tape is local to this node, and the exponents between the nodes
        # are handled by hand. Nobody asks for a gradient of the input.
        leaf = x.scaled.value.detach().requires_grad_(not x.is_input)
        weight = None if raw is None else power(raw.detach(), self.q)
        factor = (
            None
            if weight is None
            # A constant has no cost: its pass backward is saved.
            else weight.value.detach().requires_grad_(_has_parameters(node))
        )
        with torch.enable_grad():
            result = leaf.expand(node.shape) if factor is None else node.linear(leaf, factor)
        exponent = 0 if weight is None else weight.exponent
        step = TapeStep(
            result=result,
            leaves=(leaf,) if factor is None else (leaf, factor),
            shifts=(exponent,),
            names=(x.name,),
            weight=None if weight is None or factor is None else Scaled(factor, weight.exponent),
            bias=bias,
            x_exponent=x.scaled.exponent,
        )
        return rescale(result.detach(), x.scaled.exponent + exponent), step

    def _local(
        self, name: str, function: Callable[..., Tensor], xs: "Sequence[Flowing]"
    ) -> "Flowing":
        values, exponent = align([x.scaled for x in xs])
        leaves = tuple(value.detach().requires_grad_() for value in values)
        with torch.enable_grad():
            result = function(*leaves)
        step = TapeStep(
            result=result,
            leaves=leaves,
            shifts=(0,) * len(xs),
            names=tuple(x.name for x in xs),
        )
        return self._record(name, rescale(result.detach(), exponent), step)

    def _record(self, name: str, scaled: Scaled, step: TapeStep | None) -> "Flowing":
        if step is not None:
            self.tape.steps[name] = step
        if self.tape.marks_only:
            scaled = mark_positive(scaled)
        return Flowing(name, scaled, is_input=step is None)


@dataclass(frozen=True, slots=True)
class Flowing:
    """A value and the node it comes from."""

    name: str
    scaled: Scaled
    is_input: bool = False


def _has_parameters(node: Affine) -> bool:
    return node.weight is not None and any(
        not name.startswith("constant.") for name in node.weight.names
    )


def _with_bias(linear: Scaled, bias: Scaled, step: TapeStep) -> Scaled:
    """linear + bias, in the memory of the linear part where that is its own.

    What the backward pass needs of a linear map are its factors, never its result. A copy of every
    value would be the second largest part of the memory, and new memory costs half of a
    millisecond per megabyte.
    """
    if bias.exponent == ZERO:
        return linear
    shared = {leaf.untyped_storage().data_ptr() for leaf in step.leaves}
    own = linear.value.untyped_storage().data_ptr() not in shared
    if not own or linear.exponent != bias.exponent or not linear.value.is_contiguous():
        return add_scaled(linear, bias)
    return rescale(linear.value.add_(bias.value), linear.exponent)


def _zeros(node: Affine) -> Scaled:
    return Scaled(torch.zeros(node.shape, dtype=torch.float64), ZERO)


# What norms are computed from (a graph and constant inputs), and why they may be mere bounds.


def graph_of(model: nn.Module, x: Example | Graph, output: str | int | None = None) -> Graph:
    """The graph itself, or the model captured on the example."""
    return x if isinstance(x, Graph) else capture(model, x, output=output)


def upper_bound_reasons(graph: Graph) -> tuple[str, ...]:
    """Why the path norm of this graph is an upper bound; empty when it is exact."""
    leaky = [node for node in graph.nodes if isinstance(node, Activation) and node.slope != 0]
    return (f"{len(leaky)} leaky relu(s) bounded by max(1, |slope|)",) if leaky else ()


def alone_reasons(graph: Graph) -> tuple[str, ...]:
    """The assumption about batches behind a number of this graph."""
    return (f"each input alone: {graph.alone}",) if graph.alone else ()


def constant_inputs(graph: Graph, state: State, fill: float = 1.0) -> Sequence[Tensor]:
    """The input that is `fill` everywhere, on the device of the state."""
    device = next((t.device for t in state.values()), torch.device("cpu"))
    return [
        torch.full(node.shape, fill, dtype=torch.float64, device=device) for node in graph.inputs
    ]


# How the coordinates of one path lifting compare with those of another: equal, below, above, mixed.


class PathOrder(Enum):
    """How the second network's path coordinates compare with the first's."""

    EQUAL = 0
    BELOW = 1  # between 0 and the first's: pruned, rounded toward zero
    ABOVE = 2
    MIXED = 3


def compare(a: Tensor, b: Tensor) -> PathOrder:
    """How the entries of b compare with those of a."""
    if bool((a == b).all()):
        return PathOrder.EQUAL
    # Signs before sizes: a weight of the other sign is not a smaller version of the first.
    if not same_sign(a, b):
        return PathOrder.MIXED
    if bool((b.abs() <= a.abs()).all()):
        return PathOrder.BELOW
    return PathOrder.ABOVE if bool((b.abs() >= a.abs()).all()) else PathOrder.MIXED


def same_sign(a: Tensor, b: Tensor) -> bool:
    """No entry changes its sign; zero has either."""
    return bool((a.sign() * b.sign() >= 0).all())


def join(a: PathOrder, b: PathOrder) -> PathOrder:
    """The order on all paths that follows from two orders on parts of them."""
    if a is b or b is PathOrder.EQUAL:
        return a
    # EQUAL is neutral; two different orders imply nothing.
    return b if a is PathOrder.EQUAL else PathOrder.MIXED
