"""The certificate methods: each bounds |f − g| per box and output, soundly and alone."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.certificates.affine import AffineForms, TooLarge
from secateurs.certificates.domain import Domain
from secateurs.certificates.interval import Interval
from secateurs.certificates.linear import Relaxation, Relaxed
from secateurs.certificates.problem import Pace, Problem
from secateurs.certificates.relaxing import Skip, relaxable, relaxed, symbols
from secateurs.certificates.two_stream import TwoStream
from secateurs.graph import propagate
from secateurs.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Upper bounds of |f − g|: per box and output, and (where known) of the ℓ¹ norm over the
    outputs per box.
    """

    per_output: Tensor
    whole: Tensor | None = None
    remarks: tuple[str, ...] = ()


Method = Callable[[Problem, Domain], Reach]
METHODS: Registry[Method] = Registry("certificate method")
"""name → method(problem, domain) -> Reach. A user may register more; each must be sound alone."""

NAMED_ONLY = ("path-metric", "path-metric-per-output", "input-weighted")
"""Computed only when named: two-stream, which costs the same, is never above them (max-pools as
maxima, each input by its own size, no sign assumption); in 5,842 measured boxes none ever won."""


def automatic() -> list[str]:
    """What "auto" computes: every method that can win, cheap ones first."""
    return [name for name in METHODS.names() if name not in NAMED_ONLY]


@METHODS.register("path-metric")
def path_metric_bound(problem: Problem, domain: Domain) -> Reach:
    """Theorem 3.1: ‖f(x) − g(x)‖_q ≤ max(‖x‖_∞, 1)·‖Φ(θ) − Φ(θ')‖₁ for every q ≥ 1; needs θθ' ≥
    0.
    """
    _same_signs(problem)
    ones = torch.ones_like(problem.fed(domain)[0][:1])
    total = problem.path_distance(fed=ones, biases=True).sum()
    # A bias is an input of size 1, hence max(‖x‖_∞, 1).
    whole = domain.magnitude.flatten(1).amax(dim=1).clamp(min=1) * total
    return Reach(per_output=whole.unsqueeze(1).expand(-1, problem.outputs), whole=whole)


@METHODS.register("path-metric-per-output")
def path_metric_per_output(problem: Problem, domain: Domain) -> Reach:
    """Theorem C.1, per output: ≤ ‖x‖_∞·‖Φ^I(θ) − Φ^I(θ')‖₁ + ‖Φ^H(θ) − Φ^H(θ')‖₁; needs θθ' ≥ 0."""
    _same_signs(problem)
    ones = torch.ones_like(problem.fed(domain)[0][:1])
    inner = problem.path_distance(fed=ones, biases=False)
    # Fed with zeros, only the paths that begin at biases are left.
    hidden = problem.path_distance(fed=torch.zeros_like(ones), biases=True)
    reach = domain.magnitude.flatten(1).amax(dim=1, keepdim=True)
    return Reach(per_output=reach * inner + hidden)


@METHODS.register("input-weighted")
def input_weighted(problem: Problem, domain: Domain) -> Reach:
    """Theorem C.1 with every path from input u weighted by the largest |x_u| of the box; needs θθ'
    ≥ 0.
    """
    _same_signs(problem)
    return Reach(per_output=problem.path_distance(fed=domain.magnitude.unsqueeze(1), biases=True))


@METHODS.register("two-stream")
def two_stream(problem: Problem, domain: Domain) -> Reach:
    """Absolute values and their differences side by side; no sign assumption."""
    flow = TwoStream(unit=problem.unit)
    streams = propagate(problem.graph, flow, [domain.magnitude.unsqueeze(1)], problem.pair)
    return Reach(per_output=streams.d.flatten(1).expand(len(domain), -1))


@METHODS.register("interval")
def interval(problem: Problem, domain: Domain) -> Reach:
    """Intervals of f, g and f − g with the ReLU case split; no sign assumption."""
    boxes = propagate(
        problem.graph,
        Interval(unit=problem.unit),
        [problem.fed(domain)],
        problem.pair,
    )
    return Reach(per_output=boxes.bounds.largest.flatten(1).expand(len(domain), -1))


@METHODS.register("affine")
def affine(problem: Problem, domain: Domain) -> Reach:
    """Joint affine forms of f and f − g; no sign assumption; an input needs a symbol per pixel."""
    # No form has more symbols than inputs and neurons can make, so small networks take
    # more boxes at a time.
    most = min(symbols(problem), relaxable(problem))
    parts = domain.split(max(1, 2**24 // (most * problem.widest)))
    return Reach(per_output=torch.cat([_by_forms(problem, part) for part in parts]))


def _by_forms(problem: Problem, domain: Domain) -> Tensor:
    late = Pace(clock=problem.clock).late("affine: one layer further")
    flow = AffineForms(symbols=symbols(problem), unit=problem.unit, late=late)
    try:
        forms = propagate(problem.graph, flow, [problem.fed(domain)], problem.pair)
    except TooLarge as error:
        raise Skip(f"no affine forms: {error}") from None
    return flow.bounds(forms).largest.flatten(1).expand(len(domain), -1)


@METHODS.register("linear")
def linear(problem: Problem, domain: Domain) -> Reach:
    """Linear relaxation of f − g, backward from every output; no sign assumption."""
    flow, y = relaxed(problem, domain)
    # Outputs that time does not reach keep their forward bounds.
    found = domain.lo.new_full((len(domain), problem.outputs), torch.inf)
    pace, done = flow.pace.under(problem.clock), 0
    cells = len(domain) * sum(torch.Size(n.shape).numel() for n in problem.graph.nodes)
    for index in _chunks(problem, cells):
        if not pace.allows(len(index) * cells):
            break
        high, low = both_ends(flow, y, index)
        found[:, index] = torch.maximum(high, -low)
        done = int(index[-1]) + 1
        pace.done(f"linear: {done} of {problem.outputs} outputs")
    forward = "interval" if isinstance(flow.inner, Interval) else "forward"
    remarks = (
        (
            f"linear: some neurons of {flow.loose} layer(s) kept {forward} bounds (effort"
            " or time spent, or little to gain)",
        )
        if flow.loose
        else ()
    )
    if done < problem.outputs:
        text = f"linear: time was up after {done} of {problem.outputs} outputs"
        remarks = (*remarks, text)
    return Reach(
        # Both are sound; the forward bound is the tighter one where effort ran out.
        per_output=torch.minimum(found, flow.bounds(y).largest.flatten(1)),
        remarks=remarks,
    )


def both_ends(flow: Relaxation, y: Relaxed, index: Tensor) -> tuple[Tensor, Tensor]:
    """Upper and lower bounds of f − g for these outputs, (boxes, outputs)."""
    unit = y.d.new_zeros(len(index), *y.d.flatten(1).shape)
    unit[torch.arange(len(index), device=index.device), :, index] = 1
    unit = unit.reshape(len(index), *y.d.shape)
    # −(upper bound of −v) is a lower bound of v: one batch of directions gives both
    # ends.
    high, low = flow.above(y, None, torch.cat([unit, -unit])).chunk(2)
    return high.T.detach(), -low.T.detach()


def _chunks(problem: Problem, cells: int) -> tuple[Tensor, ...]:
    # Two directions an output; 2²⁴ cells of all maps are 128 MB in float64, and take seconds.
    rows = max(1, 2**24 // (2 * cells))
    return torch.split(torch.arange(problem.outputs), rows)


def _same_signs(problem: Problem) -> None:
    signs = problem.signs
    if not signs.same:
        raise Skip(
            f"θθ' ≥ 0 fails for {signs.differing} effective parameter(s), first in {signs.first}"
        )
