"""The relaxed output of two networks on some boxes, within the effort and the time there is."""

import torch

from secateurs.graph import Activation, Pool, propagate
from secateurs.paths.certificates.domain import Domain
from secateurs.paths.certificates.flows.affine_forms import AffineForms, TooLarge
from secateurs.paths.certificates.flows.backward import Relaxed
from secateurs.paths.certificates.flows.relaxed import Relaxation
from secateurs.paths.certificates.problem import Problem


class Skip(Exception):
    """A method's assumption does not hold here. Its text is what `Certificate.skipped` shows."""


def relaxed(problem: Problem, domain: Domain) -> tuple[Relaxation, Relaxed]:
    """The relaxed output of the network pair on these boxes, with the flow that bounds directions
    of it.

    Where backward passes for all neurons would cost more than the effort, affine forms serve the
    others; where these do not fit, intervals.
    """
    cells = 2 * problem.outputs * sum(_size(node.shape) for node in problem.graph.nodes)
    if cells > problem.effort:
        raise Skip(
            f"{problem.outputs} outputs need {cells:.1e} cells of backward passes per box, effort"
            f" is {problem.effort:.1e}"
        )
    if _price(problem) > problem.effort:
        forms = AffineForms(
            symbols=symbols(problem), unit=problem.unit, late=problem.clock.late
        )
        try:
            return _relaxed_with(problem, domain, problem.effort - cells, forms)
        except TooLarge:
            pass
    return _relaxed_with(problem, domain, problem.effort - cells, None)


def _relaxed_with(
    problem: Problem, domain: Domain, effort: float, inner: AffineForms | None
) -> tuple[Relaxation, Relaxed]:
    layers = sum(isinstance(n, Activation | Pool) for n in problem.graph.nodes)
    # A fifth of the time is kept for the outputs, without which all else is in vain.
    flow = Relaxation(
        effort=effort,
        unit=problem.unit,
        late=problem.clock.within(0.8).late,
        inner=inner,
        layers=layers if _price(problem) > effort else 1,
    )
    with torch.enable_grad():
        y = propagate(problem.graph, flow, [problem.fed(domain)], problem.pair)
    return flow, y


def _price(problem: Problem) -> float:
    """Cells of backward passes from every neuron of every layer."""
    price, before = 0.0, 0
    for node in problem.graph.nodes:
        if isinstance(node, Activation | Pool):
            price += 6.0 * _size(problem.graph.by_name[node.inputs[0]].shape) * before
        before += _size(node.shape)
    return price


def relaxable(problem: Problem) -> int:
    """How many symbols there can be: one per input, two per neuron."""
    nodes = problem.graph.nodes
    relaxing = sum(
        _size(node.shape) for node in nodes if isinstance(node, Activation | Pool)
    )
    return sum(_size(node.shape) for node in problem.graph.inputs) + 2 * relaxing


def symbols(problem: Problem) -> int:
    """The most symbols of one affine form."""
    if problem.symbols is not None:
        return problem.symbols
    return max(1, 2**23 // problem.widest)


def _size(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
