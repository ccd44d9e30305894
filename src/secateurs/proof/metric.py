"""The path metric ‖Φ(θ) − Φ(θ')‖₁ between two parameter vectors of one graph."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
    affines,
    capture,
    joint,
    propagate,
)
from secateurs.paths.mass import (
    ZERO,
    PathOrder,
    Scaled,
    add_scaled,
    align,
    alone_reasons,
    compare,
    constant_inputs,
    growth,
    join,
    rescale,
    same_sign,
    spread_bias,
    upper_bound_reasons,
)
from secateurs.paths.norms import total
from secateurs.proof.forms import ParameterPair
from secateurs.proof.path_streams import exact_distance

# The ℓ1 distance of two path liftings, propagated together with both norms.
#
# For one edge with weights w, w' and common part c = min(|w|, |w'|) if the signs agree, else 0,
# the triangle inequality gives ‖wΦ − w'Φ'‖₁ ≤ c·‖Φ − Φ'‖₁ + (|w| − c)·‖Φ‖₁ + (|w'| − c)·‖Φ'‖₁. No
# subtraction of large numbers happens, so a tiny distance between two large norms keeps its
# digits.
#
# Equality holds where the weights agree, where nothing differed before, or where one network
# dominates the other on all paths so far (same signs, magnitudes all at least, or all at most, as
# large): pruning, rounding toward zero, a change in one layer only. `exact` records that;
# otherwise the value is an upper bound.


@dataclass(frozen=True, slots=True, kw_only=True)
class PathDifference:
    """Norms of both networks up to a value, the distance (bound), and what is known of it."""

    first: Scaled
    second: Scaled
    distance: Scaled
    order: PathOrder
    exact: bool


class DifferenceFlow:
    """Carries (‖Φ‖₁, ‖Φ'‖₁, ‖Φ−Φ'‖₁) for the states (θ, θ') handed on as a pair."""

    def __init__(self, *, biases: bool = True) -> None:
        self.biases = biases

    def input(self, node: Input, value: Tensor) -> PathDifference:
        """Both networks read the same input."""
        # One tensor for both: no flow writes into what it received.
        norm = rescale(value.abs())
        return PathDifference(
            first=norm,
            second=norm,
            distance=_zero(value),
            order=PathOrder.EQUAL,
            exact=True,
        )

    def affine(
        self, node: Affine, x: PathDifference | None, params: tuple[State, State]
    ) -> PathDifference:
        """Weights first, then the bias."""
        pair = None if x is None else self._weight(node, x, params)
        if node.bias is None or not self.biases:
            return pair if pair is not None else _nothing(node)
        bias = self._bias(node, params)
        return bias if pair is None else _sum([pair, bias])

    def activation(self, node: Activation, x: PathDifference) -> PathDifference:
        """Nothing for relu; a leaky relu grows by at most max(1, |slope|)."""
        return _map(lambda t: t * growth(node), x)

    def pool(self, node: Pool, x: PathDifference) -> PathDifference:
        """Sums over the windows."""
        return _map(node.total, x)

    def structural(self, node: Structural, xs: Sequence[PathDifference]) -> PathDifference:
        """The same reordering of each."""
        order, exact = _joint(xs)
        return PathDifference(
            first=_reorder(node, [x.first for x in xs]),
            second=_reorder(node, [x.second for x in xs]),
            distance=_reorder(node, [x.distance for x in xs]),
            order=order,
            exact=exact,
        )

    def add(self, node: Add, xs: Sequence[PathDifference]) -> PathDifference:
        """Sums, whatever the signs."""
        return _sum(xs)

    def _weight(
        self, node: Affine, x: PathDifference, params: tuple[State, State]
    ) -> PathDifference:
        if node.weight is None:
            return _map(lambda t: t.expand(node.shape), x)
        a, b = node.weight(params[0]), node.weight(params[1])
        # sign first: a·b itself could underflow to 0 for two small weights of one sign.
        common = torch.where(a * b.sign() > 0, torch.minimum(a.abs(), b.abs()), 0.0)
        order = compare(a, b)
        # Two prunings in sequence are a pruning; a pruning behind a growth is neither.
        compatible = order is x.order and order is not PathOrder.MIXED
        parts = [_through(node, x.distance, common)]
        # The two passes are only paid where the layer changed.
        if order is not PathOrder.EQUAL:
            parts += [
                _through(node, x.first, a.abs() - common),
                _through(node, x.second, b.abs() - common),
            ]
        return PathDifference(
            first=_through(node, x.first, a.abs()),
            second=_through(node, x.second, b.abs()),
            distance=add_scaled(*parts),
            order=join(x.order, order),
            exact=x.exact
            and (order is PathOrder.EQUAL or x.order is PathOrder.EQUAL or compatible),
        )

    def _bias(self, node: Affine, params: tuple[State, State]) -> PathDifference:
        a, b = node.bias_in(params[0]), node.bias_in(params[1])
        if a is None or b is None:
            return _nothing(node)
        parts = [spread_bias(node, rescale(t.abs())) for t in (a, b, a - b)]
        return PathDifference(
            first=parts[0],
            second=parts[1],
            distance=parts[2],
            order=compare(a, b),
            exact=True,
        )


def _through(node: Affine, x: Scaled, weight: Tensor) -> Scaled:
    scaled = rescale(weight)
    return rescale(node.linear(x.value, scaled.value), x.exponent + scaled.exponent)


def _map(function: Callable[[Tensor], Tensor], x: PathDifference) -> PathDifference:
    first, second, distance = (
        rescale(function(part.value), part.exponent) for part in (x.first, x.second, x.distance)
    )
    return PathDifference(
        first=first, second=second, distance=distance, order=x.order, exact=x.exact
    )


def _sum(xs: Sequence[PathDifference]) -> PathDifference:
    order, exact = _joint(xs)
    return PathDifference(
        first=add_scaled(*[x.first for x in xs]),
        second=add_scaled(*[x.second for x in xs]),
        distance=add_scaled(*[x.distance for x in xs]),
        order=order,
        exact=exact,
    )


def _reorder(node: Structural, parts: Sequence[Scaled]) -> Scaled:
    values, exponent = align(parts)
    return Scaled(node.function(*values), exponent)


def _joint(xs: Sequence[PathDifference]) -> tuple[PathOrder, bool]:
    order = PathOrder.EQUAL
    for x in xs:
        order = join(order, x.order)
    return order, all(x.exact for x in xs)


def _zero(like: Tensor) -> Scaled:
    return Scaled(torch.zeros_like(like), ZERO)


def _nothing(node: Affine) -> PathDifference:
    zero = Scaled(torch.zeros(node.shape, dtype=torch.float64), ZERO)
    return PathDifference(first=zero, second=zero, distance=zero, order=PathOrder.EQUAL, exact=True)


class PathMetric(float):
    """‖Φ(θ) − Φ(θ')‖₁ as a float, with its logarithm, its parts and what was assumed.

    Attributes:
        log2: Its base-2 logarithm.
        exact: Whether it is the distance itself; otherwise an upper bound of it.
        lower: |‖Φ(θ)‖₁ − ‖Φ(θ')‖₁|, never more than the distance.
        same_sign: No weight or bias changes its sign, so that Theorem 3.1 applies.
        first, second: The log₂ norms of the two networks.
        per_output: One distance (bound) per output neuron.
        inputs, biases: The parts of the paths that start in an input, and in a bias; with
            `split=True`.
        assumptions: What was assumed, in words.
    """

    log2: float
    exact: bool
    lower: float
    same_sign: bool
    first: float
    second: float
    per_output: Tensor
    inputs: "PathMetric | None"
    biases: "PathMetric | None"
    assumptions: tuple[str, ...]

    @property
    def is_upper_bound(self) -> bool:
        """Whether the value may exceed the distance."""
        return not self.exact


def path_metric(
    dense: nn.Module,
    sparse: nn.Module,
    example: Example | Graph,
    *,
    split: bool = False,
    output: str | int | None = None,
) -> PathMetric:
    """‖Φ(θ) − Φ(θ')‖₁ for the parameters of two models, in one pass that carries the difference.

    Exact when one network is the other pruned or rounded toward zero (any layers at once), when
    they differ in one layer only, or are equal, and where the paths are few enough to be compared
    one by one (some two million that are changed and alive in both); otherwise the edgewise bound
    of `DifferenceFlow`, and `exact` is False. No sign assumption is needed for the value; Theorem
    3.1 needs `same_sign`.

    >>> from copy import deepcopy
    >>> from torch import nn
    >>> dense = nn.Linear(2, 1, bias=False)
    >>> _ = dense.weight.data.copy_(torch.tensor([[1.0, 2.0]]))
    >>> pruned = deepcopy(dense)
    >>> _ = pruned.weight.data[0, 0] = 0.0
    >>> path_metric(dense, pruned, torch.zeros(1, 2))
    1.0

    Reference: Path-metrics, pruning, and generalization, Section 3, equation (5), Corollary C.1.
    """
    graph, states = shared_graph(dense, sparse, example, output)
    result = _metric(graph, states, "all")
    if split:
        result.inputs, result.biases = (
            _metric(graph, states, "inputs"),
            _metric(graph, states, "biases"),
        )
    return result


def shared_graph(
    a: nn.Module, b: nn.Module, x: Example | Graph, output: str | int | None = None
) -> tuple[Graph, tuple[State, State]]:
    """The graph of both models with both parameter vectors, refused if their structures differ; a
    graph given is trusted.
    """
    if isinstance(x, Graph):
        return x, (x.state(a), x.state(b))
    graphs = capture(a, x, output=output), capture(b, x, output=output)
    both = joint(*graphs, (graphs[0].state(a), graphs[1].state(b)))
    return both.graph, (both.first, both.second)


def signs_agree(graph: Graph, states: tuple[State, State]) -> bool:
    """Whether every effective weight and bias keeps its sign, so that θ_i θ'_i ≥ 0 along every
    path.
    """
    for node in affines(graph):
        for source in (node.weight, node.bias):
            if source is not None and not same_sign(source(states[0]), source(states[1])):
                return False
    return True


@torch.no_grad()
def _metric(graph: Graph, states: tuple[State, State], part: str) -> PathMetric:
    # Fed with zeros, only paths that start in a bias are left.
    fed = constant_inputs(graph, states[0], 0.0 if part == "biases" else 1.0)
    pair = propagate(graph, DifferenceFlow(biases=part != "inputs"), fed, states)
    # Beyond these norms single paths leave the range of floats.
    plain = all(n.exponent == 0 and total(n) > 1e-150 for n in (pair.first, pair.second))
    apart = _path_by_path(graph, states, fed, part) if plain and not pair.exact else None
    if apart is not None:
        # Rounding may leave it a last digit above the bound edge by edge.
        apart = torch.minimum(apart, pair.distance.plain().flatten())
        found = apart.reshape(pair.distance.value.shape)
        pair = replace(pair, distance=rescale(found), exact=True)
    result = PathMetric(total(pair.distance))
    result.log2, result.exact = _log2(pair.distance), pair.exact
    result.first, result.second = _log2(pair.first), _log2(pair.second)
    # The distance itself is the best lower bound where it is known.
    result.lower = float(result) if pair.exact else _gap(pair)
    result.same_sign = signs_agree(graph, states)
    result.per_output = (
        pair.distance.plain()[0] if pair.distance.exponent != ZERO else pair.distance.value[0]
    )
    result.inputs = result.biases = None
    result.assumptions = (*upper_bound_reasons(graph), *alone_reasons(graph))
    return result


def _path_by_path(
    graph: Graph, states: tuple[State, State], fed: Sequence[Tensor], part: str
) -> Tensor | None:
    """The distance itself, per output and flat, where the paths are few."""
    pair = ParameterPair(f=states[0], g=states[1])
    # There values have a dimension of boxes.
    boxes = [value.unsqueeze(0) for value in fed]
    return exact_distance(graph, boxes, pair, biases=part != "inputs", unit=0.0)


def _gap(pair: PathDifference) -> float:
    """A lower bound: the difference of the norms. It may lose all its digits, but stays valid."""
    first, second = total(pair.first), total(pair.second)
    gap = (
        # ∞ − ∞ is not a number, and 0 is always a lower bound.
        abs(first - second) if math.isfinite(first) and math.isfinite(second) else 0.0
    )
    # The subtraction cancels: this much may be lost to the sums behind both norms.
    return max(0.0, gap - 1e-12 * max(first, second)) if gap else 0.0


def _log2(scaled: Scaled) -> float:
    return float(scaled.log2_sum())
