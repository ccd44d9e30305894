"""The path metric ‖Φ(θ) − Φ(θ')‖₁ between two parameter vectors of one graph."""

import math

import torch
from torch import Tensor, nn

from secateurs.graph import Example, Graph, State, affines, capture, joint, propagate
from secateurs.naming import renamed
from secateurs.paths.norms.feeding import (
    alone_reasons,
    constant_inputs,
    upper_bound_reasons,
)
from secateurs.paths.norms.flows.difference import DifferenceFlow, Pair
from secateurs.paths.norms.flows.orders import same_sign
from secateurs.paths.norms.result import total
from secateurs.paths.norms.scaled import ZERO, Scaled


class PathMetric(float):
    """‖Φ(θ) − Φ(θ')‖₁ as a float, with what goes with it.

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


@renamed(a="dense", b="sparse", x="example")
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
    they differ in one layer only, or are equal; otherwise the edgewise bound of `flows.difference`,
    and `exact` is False. No sign assumption is needed for the value; Theorem 3.1 needs `same_sign`.

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
            if source is not None and not same_sign(
                source(states[0]), source(states[1])
            ):
                return False
    return True


@torch.no_grad()
def _metric(graph: Graph, states: tuple[State, State], part: str) -> PathMetric:
    # Fed with zeros, only paths that start in a bias are left.
    fed = constant_inputs(graph, states[0], 0.0 if part == "biases" else 1.0)
    pair = propagate(graph, DifferenceFlow(biases=part != "inputs"), fed, states)
    result = PathMetric(total(pair.distance))
    result.log2, result.exact = _log2(pair.distance), pair.exact
    result.first, result.second = _log2(pair.first), _log2(pair.second)
    # The distance itself is the best lower bound where it is known.
    result.lower = float(result) if pair.exact else _gap(pair)
    result.same_sign = signs_agree(graph, states)
    result.per_output = (
        pair.distance.plain()[0]
        if pair.distance.exponent != ZERO
        else pair.distance.value[0]
    )
    result.inputs = result.biases = None
    result.assumptions = (*upper_bound_reasons(graph), *alone_reasons(graph))
    return result


def _gap(pair: Pair) -> float:
    """A lower bound: the difference of the norms; it may lose all its digits, but not its
    validity.
    """
    first, second = total(pair.first), total(pair.second)
    gap = (
        # ∞ − ∞ is no number, and 0 is always a lower bound.
        abs(first - second) if math.isfinite(first) and math.isfinite(second) else 0.0
    )
    # The subtraction cancels; so much may be lost by the sums behind both norms.
    return max(0.0, gap - 1e-12 * max(first, second)) if gap else 0.0


def _log2(scaled: Scaled) -> float:
    return float(scaled.log2_sum())
