"""The theorems on path metrics as certificate methods, each opened when it is named (`NAMED_ONLY`):
what they state in closed form, `two-stream` bounds at least as well.
"""

import torch
from torch import Tensor

from secateurs.graph import propagate
from secateurs.proof.domain import Domain
from secateurs.proof.methods import METHODS, MethodBounds, Skip
from secateurs.proof.path_streams import PathStreams, exact_distance
from secateurs.proof.problem import NetworkPair


@METHODS.register("path-metric")
def path_metric_bound(problem: NetworkPair, domain: Domain) -> MethodBounds:
    """Theorem 3.1: ‖f(x) − g(x)‖_q ≤ max(‖x‖_∞, 1)·‖Φ(θ) − Φ(θ')‖₁ for every q ≥ 1; needs θθ' ≥
    0.
    """
    _same_signs(problem)
    ones = torch.ones_like(problem.flow_input(domain)[0][:1])
    total = path_distance(problem, fed=ones, biases=True, exact=True).sum()
    # A bias is an input of size 1, hence max(‖x‖_∞, 1).
    whole = domain.magnitude.flatten(1).amax(dim=1).clamp(min=1) * total
    return MethodBounds(per_output=whole.unsqueeze(1).expand(-1, problem.outputs), whole=whole)


@METHODS.register("path-metric-per-output")
def path_metric_per_output(problem: NetworkPair, domain: Domain) -> MethodBounds:
    """Theorem C.1, per output: ≤ ‖x‖_∞·‖Φ^I(θ) − Φ^I(θ')‖₁ + ‖Φ^H(θ) − Φ^H(θ')‖₁; needs θθ' ≥ 0."""
    _same_signs(problem)
    ones = torch.ones_like(problem.flow_input(domain)[0][:1])
    inner = path_distance(problem, fed=ones, biases=False, exact=True)
    # With zeros as input, only the paths that start at biases are left.
    hidden = path_distance(problem, fed=torch.zeros_like(ones), biases=True, exact=True)
    reach = domain.magnitude.flatten(1).amax(dim=1, keepdim=True)
    return MethodBounds(per_output=reach * inner + hidden)


@METHODS.register("input-weighted")
def input_weighted(problem: NetworkPair, domain: Domain) -> MethodBounds:
    """Theorem C.1 with every path from input u weighted by the largest |x_u| of the box; needs θθ'
    ≥ 0.
    """
    _same_signs(problem)
    return MethodBounds(
        per_output=path_distance(problem, fed=domain.magnitude.unsqueeze(1), biases=True)
    )


def _same_signs(problem: NetworkPair) -> None:
    signs = problem.signs
    if not signs.same:
        raise Skip(
            f"θθ' ≥ 0 fails for {signs.differing} effective parameter(s), first in {signs.first}"
        )


def path_distance(
    problem: NetworkPair, *, fed: Tensor, biases: bool, exact: bool = False
) -> Tensor:
    """‖Φ(θ) − Φ(θ')‖₁ per output, with input paths weighted by the given input; edge by edge (≥) if
    not dominated.

    exact: path by path in that case, if the paths are few and the input is a single row.
    """
    flow = PathStreams(biases=biases, unit=problem.unit)
    found = propagate(problem.graph, flow, [fed], problem.pair).d.flatten(1).expand(len(fed), -1)
    if exact and not problem.signs.dominated:
        apart = exact_distance(problem.graph, [fed], problem.pair, biases=biases, unit=problem.unit)
        found = found if apart is None else torch.minimum(found, apart)
    return found
