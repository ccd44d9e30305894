"""Masks drawn on paths: what a random mask does to the path lifting, and the keep probabilities
that do it the least.

Entry i stays with probability p_i, each on its own; m is the mask, Φ the path lifting. A path p
stays if all its parameters do, and it uses none of them twice, so it stays with probability Π p_i
over its parameters. Sums over paths are linear in expectation, whatever paths have in common: the
kernels of a convolution, which many paths share, change nothing. Hence

    E‖Φ(θ) − Φ(m ⊙ θ)‖₁ = ‖Φ(θ)‖₁ − ‖Φ(p ⊙ θ)‖₁,                           (1)

since a mask only takes paths away, and, for weights divided by what they stay with,

    E‖Φ(θ) − Φ(m ⊙ θ ⊘ p)‖₂² = ‖Φ(θ ⊘ √p)‖₂² − ‖Φ(θ)‖₂²,                   (2)

since of each path φ² E(Π m_i/p_i − 1)² = φ² (Π 1/p_i − 1). For one layer (2) is the error that
equation (2) of Bar & Giryes 2023 minimises, of a network it is the error of all paths together.

(2) is a sum of products of powers of p, and so convex in log p. Where it is smallest at a given
Σp = s, the Φ-cost (q = 2) of θ ⊘ √p is c_i = μ p_i wherever p_i < 1 (the derivative of ‖Φ(θ ⊘
√p)‖₂² by log p_i is −c_i). The damped fixed point p ← min(1, t p^0.7 c^0.3) finds it: one pass
forward and one backward a step.

It does not hold where a path meets a parameter twice (weights tied along it): such parameters are
refused. Draws of a given number (`how="systematic"`) have these p exactly, but entries of one layer
are not independent; for them (1) and (2) are estimates.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateurs.base.parameters import Params
from secateurs.base.prunable import Where, prunable
from secateurs.base.registry import unknown
from secateurs.errors import ArgumentError, ParameterError
from secateurs.graph import Example, Graph, State
from secateurs.masks.budget import entries, exact_density
from secateurs.masks.systematic import inclusion_of_all
from secateurs.paths.costs import Collector, path_mass
from secateurs.paths.mass import ZERO, graph_of
from secateurs.paths.norms import exp2, first_order_names, on_one_scale, repeated_parameters

STEPS = 200
"""Steps of the fixed point at most; some thirty are usual."""
TOLERANCE = 1e-3
"""It is reached when log(c/p) of the free entries spreads by no more in the mean."""
KEPT = 0.7
"""The weight of the old p in a step: with 1/2 or less deep networks oscillate."""


@dataclass(frozen=True, kw_only=True)
class KeepProbabilities(Mapping[str, Tensor]):
    """With which probability each entry stays (a mapping), and what that does to the paths.

    Attributes:
        probabilities: One float64 tensor a parameter; together they sum to the entries kept.
        variance: E‖Φ(θ) − Φ(m ⊙ θ ⊘ p)‖₂² / ‖Φ(θ)‖₂², inf where float64 overflows.
        spread: The mean of |log(c/p) − its mean| over entries with 0 < p < 1: 0 at the optimum.
        steps: How many steps the fixed point took.
    """

    probabilities: dict[str, Tensor]
    variance: float
    spread: float
    steps: int

    def __getitem__(self, name: str) -> Tensor:
        return self.probabilities[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.probabilities)

    def __len__(self) -> int:
        return len(self.probabilities)


def keep_probabilities(
    model: nn.Module,
    example: Example | Graph,
    *,
    sparsity: float | None = None,
    density: float | None = None,
    compression: float | None = None,
    where: Where = None,
    output: str | int | None = None,
) -> KeepProbabilities:
    """The probabilities by which a random mask changes the paths of a network the least.

    Of all ways to keep each entry on its own, with as many entries kept on average, this one has
    the smallest E‖Φ(θ) − Φ(m ⊙ θ ⊘ p)‖₂² (see this module for why). They are the same after any
    rescaling of hidden neurons. `prune_(model, "path-draw", how="systematic",
    scope="proportional", ...)` draws by them.

    Args:
        sparsity, density, compression: exactly one of them, of all chosen entries together.
        where: which parameters are drawn, as for `prune_`; all others stay.
        output: which output of the model; see `capture`.

    >>> net = nn.Sequential(nn.Linear(3, 8, bias=False), nn.ReLU(), nn.Linear(8, 2, bias=False))
    >>> keep = keep_probabilities(net, torch.zeros(1, 3), density=0.5)
    >>> round(float(sum(p.sum() for p in keep.values())), 6)
    20.0
    """
    given = {"sparsity": sparsity, "density": density, "compression": compression}
    share = exact_density({name: value for name, value in given.items() if value is not None})
    if share is None:
        raise ArgumentError(
            "how much to keep is missing: give sparsity=, density= or compression=."
        )
    graph = graph_of(model, example, output)
    chosen = {n: p for n, p in prunable(model, where).items() if n in graph.parameters}
    refuse_undrawable(graph, list(chosen))
    keep = entries(share, sum(p.numel() for p in chosen.values()))
    return optimal(graph, graph.state(model), list(chosen), keep=keep)


def expected_path_loss(
    model: nn.Module,
    example: Example | Graph,
    probabilities: Params,
    *,
    output: str | int | None = None,
) -> float:
    """E‖Φ(θ) − Φ(m ⊙ θ)‖₁ / ‖Φ(θ)‖₁: the share of the path norm that a random mask takes.

    Times ‖Φ(θ)‖₁ and max(‖x‖∞, 1) it bounds E‖f(x) − f_m(x)‖₁ (Gonon et al. 2024, Theorem 3.1).
    `probabilities` names the parameters that are drawn; all others stay.
    """
    graph = graph_of(model, example, output)
    state = graph.state(model)
    _check(graph, state, probabilities)
    kept = {n: state[n].double() * p.to(state[n].device) for n, p in probabilities.items()}
    return 1 - exp2(_log2_mass(graph, {**state, **kept}, 1) - _log2_mass(graph, state, 1))


def draw_variance(
    model: nn.Module,
    example: Example | Graph,
    probabilities: Params,
    *,
    output: str | int | None = None,
) -> float:
    """E‖Φ(θ) − Φ(m ⊙ θ ⊘ p)‖₂² / ‖Φ(θ)‖₂²: the error of an unbiased draw, over all paths.

    Infinite where an entry that carries paths is never kept. `probabilities` names the parameters
    that are drawn; all others stay.

    >>> net = nn.Linear(2, 1, bias=False)
    >>> half = {"weight": torch.full((1, 2), 0.5)}
    >>> round(draw_variance(net, torch.zeros(1, 2), half), 6)
    1.0
    """
    graph = graph_of(model, example, output)
    state = graph.state(model)
    _check(graph, state, probabilities)
    return _variance(graph, state, probabilities)


def _check(graph: Graph, state: State, probabilities: Params) -> None:
    """Probabilities of parameters for which (1) and (2) hold."""
    for name, p in probabilities.items():
        if name not in graph.parameters:
            raise ParameterError(unknown("parameter", name, graph.parameters))
        if p.shape != state[name].shape:
            raise ArgumentError(
                f"the probabilities of {name!r} have shape {tuple(p.shape)}, the parameter"
                f" {tuple(state[name].shape)}."
            )
        if not bool(((p >= 0) & (p <= 1)).all()):
            raise ArgumentError(f"the probabilities of {name!r} are not all between 0 and 1.")
    refuse_undrawable(graph, probabilities)


def refuse_undrawable(graph: Graph, names: Params | list[str]) -> None:
    """Parameters that a path meets twice, or that are no factors of it."""
    twice = [name for name in repeated_parameters(graph) if name in names]
    bent = [name for name in first_order_names(graph) if name in names]
    if twice:
        raise ParameterError(
            f"{twice[0]!r} is used twice along one path, which then does not stay with the product"
            " of its probabilities: leave it out with where=."
        )
    if bent:
        raise ParameterError(
            f"{bent[0]!r} enters through a function that is no product, so no path stays with its"
            " probability: leave it out with where=, or make the weight plain."
        )


def _log2_mass(graph: Graph, state: State, q: float) -> float:
    with torch.no_grad():
        total, _ = path_mass(graph, state, q=q)
    return float(total.log2_sum())


def _divided(state: State, probabilities: Params) -> dict[str, Tensor]:
    """θ ⊘ √p; 0 where p is, which nothing may need."""
    found = {}
    for name, p in probabilities.items():
        value = state[name].detach().double()
        p = p.to(value.device)
        found[name] = torch.where(p > 0, value / p.clamp_min(1e-300).sqrt(), 0.0)
    return found


def _variance(graph: Graph, state: State, probabilities: Params) -> float:
    dead = {name: state[name].detach() * (p > 0) for name, p in probabilities.items()}
    whole = _log2_mass(graph, state, 2)
    if _log2_mass(graph, {**state, **dead}, 2) < whole - 1e-9:
        return float("inf")
    return exp2(_log2_mass(graph, {**state, **_divided(state, probabilities)}, 2) - whole) - 1


def optimal(graph: Graph, state: State, chosen: list[str], *, keep: int) -> KeepProbabilities:
    """The fixed point for these parameters of a graph; entries on no path come last. Weights tied
    along a path are taken as if they were drawn apart.
    """
    names = [name for name in chosen if name in graph.parameters]
    state = {name: value.detach() for name, value in state.items()}
    shapes = {name: state[name].shape for name in names}
    total = sum(state[name].numel() for name in names)
    if keep > total:
        raise ArgumentError(f"{keep} of {total} entries cannot be kept.")
    costs = _costs(graph, state, shapes)
    # c of the undivided weights is μp² for two layers in a row, and μp for one.
    p = inclusion_of_all({name: c.sqrt() for name, c in costs.items()}, keep)
    spread, steps = float("inf"), 0
    for step in range(1, STEPS + 1):
        steps = step
        c = _costs(graph, {**state, **_divided(state, p)}, shapes)
        spread = _spread(c, p)
        if spread <= TOLERANCE:
            break
        mixed = {name: p[name].pow(KEPT) * c[name].pow(1 - KEPT) for name in names}
        p = inclusion_of_all(mixed, keep)
    p = {name: value.reshape(shapes[name]) for name, value in p.items()}
    return KeepProbabilities(
        probabilities=p, variance=_variance(graph, state, p), spread=spread, steps=steps
    )


def _costs(graph: Graph, state: State, shapes: dict[str, torch.Size]) -> Params:
    """Φ-costs (q = 2) as shares of ‖Φ‖₂²."""
    total, masses = path_mass(graph, state, q=2)
    if total.exponent == ZERO:
        raise ParameterError("no path carries weight, so none can be drawn: unprune a layer.")
    shares = Collector(graph, state, 2, relative=True).collect(masses)
    costs, _ = on_one_scale(shapes, shares, total, relative=True)
    return {name: cost.clamp_min(0) for name, cost in costs.items()}


def _spread(costs: Params, probabilities: Params) -> float:
    logs = []
    for name, cost in costs.items():
        p = probabilities[name]
        free = (p > 0) & (p < 1) & (cost > 0)
        logs.append((cost[free] / p[free]).log())
    every = torch.cat(logs)
    return float((every - every.mean()).abs().mean()) if every.numel() else 0.0
