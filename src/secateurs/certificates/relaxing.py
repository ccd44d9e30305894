"""The relaxed output of two networks on some boxes, within the effort and the time there is."""

from collections.abc import Iterator

import torch
from torch import Tensor

from secateurs.certificates.affine import AffineForms, TooLarge
from secateurs.certificates.domain import Domain
from secateurs.certificates.linear import WIDE, Probe, Relaxation, Relaxed, largest
from secateurs.certificates.patches import cone
from secateurs.certificates.problem import Pace, Problem
from secateurs.graph import Activation, Affine, Node, Pool, propagate


class Skip(Exception):
    """A method's assumption does not hold here. Its text is what `Certificate.skipped` shows."""


def relaxed(problem: Problem, domain: Domain) -> tuple[Relaxation, Relaxed]:
    """The relaxed output of the network pair on these boxes, with the flow that bounds directions
    of it.

    Where backward passes for all neurons would cost more than the effort, affine forms serve the
    others; where these do not fit, intervals. Where they cost a good part of the effort, each box
    is probed first, and those that would gain little keep intervals.
    """
    cells = _last(problem)
    if cells > problem.effort:
        raise Skip(
            f"{problem.outputs} outputs need {cells:.1e} cells of backward passes per box, effort"
            f" is {problem.effort:.1e}"
        )
    if _price(problem) > problem.effort:
        # A fifth of the time is kept for intervals, should the forms give up.
        late = Pace(clock=problem.clock.within(0.8)).late("linear: affine forms")
        forms = AffineForms(symbols=symbols(problem), unit=problem.unit, late=late)
        try:
            return _relaxed_with(problem, domain, problem.effort - cells, forms)
        except TooLarge:
            pass
    return _probed(problem, domain, problem.effort - cells)


_CHEAP = 1 / 20
"""Passes for all neurons that cost less than this share of the effort are not worth a probe."""

_CHEAP_ON_WINDOWS = 1 / 4
"""The same for networks of convolutions whose passes all run on windows.

A ResNet-8 of a seventh of the effort takes 0.8 s a ball; a probe that says no there left the bound
30 % above that of affine forms, which take 2.5 s.
"""

_WORTH = 2 / 3
"""A box is worth the passes if they promise to lower its bound to less than this share of it."""


def _probed(problem: Problem, domain: Domain, effort: float) -> tuple[Relaxation, Relaxed]:
    if _unasked(problem) or _price(problem) > problem.effort:
        return _relaxed_with(problem, domain, effort, None)
    flow, y = _relaxed_with(problem, domain, 0.0, None)
    with torch.enable_grad():
        probe = Probe(unit=problem.unit)
        guess = propagate(problem.graph, probe, [problem.fed(domain)], problem.pair)
    # Ten outputs tell enough: those with the widest intervals.
    wide = flow.bounds(y).largest.flatten(1).detach().expand(len(domain), -1)
    index = wide.topk(min(10, wide.shape[1]), dim=1).indices
    now, then = largest(flow, y, index), largest(probe, guess, index)
    # Written so that a NaN, of bounds that overflow, counts as promising.
    promising = ~(then.sum(dim=1) >= _WORTH * now.sum(dim=1))
    if not bool(promising.any()):
        return flow, y
    return _relaxed_with(problem, domain, effort * promising, None)


def contains_forms(problem: Problem, domain: Domain) -> bool:
    """Whether `relaxed` will take its forward bounds from affine forms: computing these alone as
    well would double the cost and could not be tighter.
    """
    needed = int((domain.widths != 0).flatten(1).sum(dim=1).max())
    affordable = _last(problem) <= problem.effort < _price(problem)
    return affordable and needed <= symbols(problem)


_DEAR = 5e6
"""Cells of affine forms below which they cost less than some 0.1 s a box and are always computed.

For what they were worth above it see benchmarks/results/certificate_quality.md.
"""


def outdoes_forms(problem: Problem) -> bool:
    """Whether `linear` makes all its passes unasked, and affine forms cost so much that they are
    left out beside it.

    Where boxes are probed first (max-pools of convolutions), forms may be 2 % the tighter.
    """
    most = min(symbols(problem), relaxable(problem))
    forms = most * sum(_size(node.shape) for node in problem.graph.nodes)
    return _unasked(problem) and _last(problem) <= problem.effort and forms > _DEAR


def _last(problem: Problem) -> int:
    """Cells of backward passes from the outputs alone."""
    return 2 * problem.outputs * sum(_size(node.shape) for node in problem.graph.nodes)


def _relaxed_with(
    problem: Problem,
    domain: Domain,
    effort: float | Tensor,
    inner: AffineForms | None,
) -> tuple[Relaxation, Relaxed]:
    layers = sum(isinstance(n, Activation | Pool) for n in problem.graph.nodes)
    # The outputs need the rest of the time, and forms some to be carried to the end; without them
    # all else is in vain.
    share = 0.8 if inner is None else 0.4
    flow = Relaxation(
        effort=effort,
        unit=problem.unit,
        pace=Pace(clock=problem.clock.within(share)),
        inner=inner,
        layers=layers if _price(problem) > problem.effort else 1,
        ahead=layers,
    )
    # The tape is autograd's, and the methods run under no_grad.
    with torch.enable_grad():
        y = propagate(problem.graph, flow, [problem.fed(domain)], problem.pair)
    return flow, y


def _unasked(problem: Problem) -> bool:
    """Whether all passes cost so little that no probe is needed."""
    layers = list(_layers(problem))
    on_windows = all(windows for _, _, windows in layers) and any(
        isinstance(node, Affine) and node.operation.sliding is not None
        for node in problem.graph.nodes
    )
    share = _CHEAP_ON_WINDOWS if on_windows else _CHEAP
    return _price(problem) <= share * problem.effort


def _price(problem: Problem) -> float:
    """Cells of backward passes from every neuron of every layer."""
    # Six directions per neuron: both ends of z, of z' and of δ.
    return sum(6.0 * neurons * cells for neurons, cells, _ in _layers(problem))


def _layers(problem: Problem) -> Iterator[tuple[int, int, bool]]:
    """Of each layer that is relaxed: neurons, cells of one pass, and whether it is on windows."""
    before, nodes = 0, dict[str, Node]()
    for node in problem.graph.nodes:
        if isinstance(node, Activation | Pool):
            behind = cone(nodes, node.inputs[0])
            windows = behind is not None and behind.cells <= WIDE * before
            # Through all before it, or through the windows it depends on.
            cells = behind.cells if behind is not None and windows else before
            yield _size(nodes[node.inputs[0]].shape), cells, windows
        before += _size(node.shape)
        nodes[node.name] = node


def relaxable(problem: Problem) -> int:
    """How many symbols there can be: one per input, two per neuron."""
    nodes = problem.graph.nodes
    relaxing = sum(_size(node.shape) for node in nodes if isinstance(node, Activation | Pool))
    return sum(_size(node.shape) for node in problem.graph.inputs) + 2 * relaxing


def symbols(problem: Problem) -> int:
    """The most symbols of one affine form."""
    if problem.symbols is not None:
        return problem.symbols
    # 2²³ numbers in float64 are 64 MB.
    return max(1, 2**23 // problem.widest)


def _size(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
