"""The certificate methods, each of which soundly bounds |f − g| per box and output; which of them
run, and how they share the effort and the time.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from secateurs.base.registry import Registry
from secateurs.graph import Activation, Affine, Node, Opaque, Pool, propagate
from secateurs.proof.affine import AffineForms, TooLarge
from secateurs.proof.dense_chain import chain_of, is_dense
from secateurs.proof.descent import Descent, NodeRanges, RangedZonotopes
from secateurs.proof.domain import Domain
from secateurs.proof.forms import Bounds
from secateurs.proof.interval import Interval, TwoStream
from secateurs.proof.linear import (
    WIDE,
    Improved,
    Probe,
    Relaxation,
    Relaxed,
    both_directions,
    largest,
)
from secateurs.proof.patches import cone
from secateurs.proof.problem import NetworkPair, Pace
from secateurs.proof.zonotope import Pair, nodes_alone


class Skip(Exception):
    """A method does not apply here. Its text is shown by `Certificate.skipped`; `run_methods`,
    below, adds why a method is not needed.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodBounds:
    """Upper bounds of |f − g|: per box and output, and (if known) of the ℓ¹ norm over the outputs
    per box.

    ends: Below and above f itself, where the method knows them.
    complete: They hold for networks of real numbers, whose weights may be computed.
    """

    per_output: Tensor
    whole: Tensor | None = None
    ends: tuple[Tensor, Tensor] | None = None
    remarks: tuple[str, ...] = ()
    complete: bool = False


Method = Callable[[NetworkPair, Domain], MethodBounds]
_BENT = (Activation, Opaque, Pool)
"""The nodes between which a network is affine."""

NAMED_ONLY = ("path-metric", "path-metric-per-output", "input-weighted")
"""Computed only when named: where g is f pruned, two-stream, which costs less, is never above them
(max-pools as maxima, each input by its own size, no sign assumption), and where some weights grew
the other methods are; in 5,842 measured boxes none ever won."""

METHODS: Registry[Method] = Registry(
    "certificate method", homes=dict.fromkeys(NAMED_ONLY, "secateurs.proof.path_methods")
)
"""name → method(problem, domain) -> MethodBounds. A user may register more; each must be sound
alone."""


def automatic() -> list[str]:
    """The methods of "auto": every one that can be the tightest, cheap ones first."""
    return [name for name in METHODS.names() if name not in NAMED_ONLY]


@METHODS.register("two-stream")
def two_stream(problem: NetworkPair, domain: Domain) -> MethodBounds:
    """Absolute values and their differences side by side; no sign assumption."""
    flow = TwoStream(unit=problem.unit)
    streams = propagate(problem.graph, flow, [domain.magnitude.unsqueeze(1)], problem.pair)
    return MethodBounds(per_output=streams.d.flatten(1).expand(len(domain), -1))


@METHODS.register("interval")
def interval(problem: NetworkPair, domain: Domain) -> MethodBounds:
    """Intervals of f, g and f − g with the ReLU case split; no sign assumption."""
    boxes = propagate(
        problem.graph,
        Interval(unit=problem.unit),
        [problem.flow_input(domain)],
        problem.pair,
    )
    return _of_flow(boxes.bounds, len(domain))


def _of_flow(found: Bounds, boxes: int) -> MethodBounds:
    """What a forward flow says of the outputs."""
    largest, low, high = (
        value.flatten(1).expand(boxes, -1) for value in (found.largest, found.l, found.h)
    )
    return MethodBounds(per_output=largest, ends=(low, high))


@METHODS.register("zonotope")
def zonotope(problem: NetworkPair, domain: Domain) -> MethodBounds:
    """Zonotopes of f, of g and of f − g, with a symbol for every varying input and every open
    neuron, and backward passes on the ranges that they prove; no sign assumption.
    """
    found = domain.lo.new_full((len(domain), problem.outputs), torch.inf)
    low, high = -found, found.clone()
    remarks = list[str]()
    for number, box in enumerate(domain.split(1)):
        try:
            proven = by_zonotopes(problem, box)
        except TooLarge as error:
            if not number:
                raise Skip(f"no zonotopes: {error}") from None
            remarks.append(f"zonotope: time was up after {number} of {len(domain)} boxes")
            break
        found[number] = proven.pair.difference(problem.unit)
        below, above = proven.pair.ends(problem.unit)[0]
        low[number], high[number] = below.flatten(), above.flatten()
        if problem.evaluated is not None and problem.unit:
            problem.evaluate_on(box, {name: one.bounds for name, one in proven.seen.items()})
        if proven.known is not None:
            flow, y = passes_below(problem, box, proven.seen, proven.known)
            passed, _ = _by_outputs(problem, flow, y, 1)
            # `fmin` takes the other where passes overflow.
            found[number] = torch.fmin(found[number], passed[0])
        if proven.dropped:
            remarks.append(
                f"zonotope: {proven.dropped} open neurons got no symbol; say symbols= to allow"
            )
    return MethodBounds(per_output=found, ends=(low, high), remarks=tuple(remarks), complete=True)


_ZONOTOPES = 2**27
"""Numbers that the generators of one value may take: 1 GB, of which there are eight at a time.
Larger ones are computed anew whenever they are read.
"""

_DOWN = 16
"""Backward passes from neurons may take this many times the cells of `effort`: minutes, which only
networks of fifty layers need. There, before remainders kept their symbols, they brought the bound
from 2.2 times what is found to 1.5.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """What zonotopes prove on one box.

    Attributes:
        pair: The outputs.
        dropped: Open neurons that got no symbol.
        seen: The ranges of all nodes, on which backward passes stand.
        known: What passes from neurons have proved; None where passes have nothing to gain, or
            those from the outputs exceed the effort.
    """

    pair: Pair
    dropped: int
    seen: dict[str, NodeRanges]
    known: Improved | None


def by_zonotopes(problem: NetworkPair, domain: Domain) -> Proven:
    """What they prove on one box; the last results are kept."""
    kept: list[tuple[Tensor, Tensor, Any, Proven]]
    kept = problem.shared.setdefault("zonotopes", [])
    settings = (problem.unit, problem.symbols, problem.effort)
    for lo, hi, how, found in kept:
        if how == settings and torch.equal(lo, domain.lo) and torch.equal(hi, domain.hi):
            return found
    most, stored = problem.symbols, math.inf
    if most is None:
        most = _symbols_of_zonotopes(problem, domain)
        # What remainders add to as many symbols as can be kept is kept with them.
        if most > _ZONOTOPES // problem.widest:
            stored = _ZONOTOPES
    flow = RangedZonotopes(
        unit=problem.unit,
        radii=problem.weight_radii() if problem.unit else ({}, {}),
        most=most,
        stored=stored,
        held=_ZONOTOPES if problem.symbols is None else most * problem.widest,
        alone=nodes_alone(problem.graph),
        late=Pace(clock=problem.clock).late("zonotope: one layer further"),
    )
    with torch.no_grad():
        y = propagate(problem.graph, flow, [problem.flow_input(domain)], problem.pair)
    known = None
    if _has_bends(problem, flow.seen) and output_cells(problem) <= problem.effort:
        below, _ = passes_below(problem, domain, flow.seen, None)
        known = Improved(bounds=tuple(below.proven), loose=below.loose)
    found = Proven(pair=y, dropped=flow.dropped, seen=flow.seen, known=known)
    kept.append((domain.lo, domain.hi, settings, found))
    # A node has nine numbers for each of its values, and those of an activation six more.
    numbers = 16 * _cells(problem)
    while len(kept) > 1 and sum(numbers + one.pair.f.numbers for *_, one in kept) > 2**20:
        kept.pop(0)
    return found


def _has_bends(problem: NetworkPair, seen: dict[str, NodeRanges]) -> bool:
    """Whether the box lies on several linear pieces: on one zonotopes are exact."""
    return any(
        not isinstance(node, Activation) or not bool(seen[node.inputs[0]].bounds.settled.all())
        for node in problem.graph.nodes
        if isinstance(node, _BENT)
    )


def passes_below(
    problem: NetworkPair, domain: Domain, seen: dict[str, NodeRanges], known: Improved | None
) -> tuple[Descent, Relaxed]:
    """The relaxed output on these ranges; with `known` without further passes from neurons."""
    layers = sum(isinstance(node, _BENT) for node in problem.graph.nodes)
    flow = Descent(
        seen,
        effort=_DOWN * problem.effort,
        unit=problem.unit,
        pace=Pace(clock=problem.clock.within(0.8)),
        layers=layers,
        ahead=layers,
        known=known,
    )
    with torch.enable_grad():
        y = propagate(problem.graph, flow, [problem.flow_input(domain)], problem.pair)
    return flow, y


@METHODS.register("affine")
def affine(problem: NetworkPair, domain: Domain) -> MethodBounds:
    """Joint affine forms of f and f − g; no sign assumption; an input needs a symbol per pixel."""
    # No form has more symbols than there are inputs and neurons, so small networks take more boxes
    # at a time.
    most = min(symbols(problem), relaxable(problem))
    parts = domain.split(max(1, 2**24 // (most * problem.widest)))
    return _join([_by_forms(problem, part) for part in parts])


def _by_forms(problem: NetworkPair, domain: Domain) -> MethodBounds:
    late = Pace(clock=problem.clock).late("affine: one layer further")
    flow = AffineForms(symbols=symbols(problem), unit=problem.unit, late=late)
    try:
        forms = propagate(problem.graph, flow, [problem.flow_input(domain)], problem.pair)
    except TooLarge as error:
        raise Skip(f"no affine forms: {error}") from None
    return _of_flow(flow.bounds(forms), len(domain))


@METHODS.register("linear")
def linear(problem: NetworkPair, domain: Domain) -> MethodBounds:
    """Linear relaxation of f − g, backward from every output; no sign assumption."""
    if all_by_chain(problem):
        return _by_chain(problem, domain)
    flow, y = relax(problem, domain)
    found, done = _by_outputs(problem, flow, y, len(domain))
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
    before = _of_flow(flow.bounds(y), len(domain))
    # Both are sound; the forward bound is tighter where effort ran out.
    least = torch.minimum(found, before.per_output)
    return replace(before, per_output=least, remarks=remarks)


def _by_outputs(
    problem: NetworkPair, flow: Relaxation, y: Relaxed, boxes: int
) -> tuple[Tensor, int]:
    """|f − g| by passes from the outputs, infinite for those that are not reached in time, and how
    many are.
    """
    found = flow.left.new_full((boxes, problem.outputs), torch.inf)
    pace, done = flow.pace.under(problem.clock), 0
    every = torch.arange(problem.outputs, device=found.device)
    cells = boxes * _cells(problem)
    for index in torch.split(every, rows_at_a_time(problem, boxes)):
        if not pace.allows(len(index) * cells):
            break
        high, low = both_ends(flow, y, index)
        found[:, index] = torch.maximum(high, -low)
        done = int(index[-1]) + 1
        pace.done(f"{done} of {problem.outputs} outputs")
    return found, done


def rows_at_a_time(problem: NetworkPair, boxes: int = 1) -> int:
    """Directions of a pass, both ends of each: 2²⁴ cells of all maps are 128 MB in float64, and
    take seconds of a processor.
    """
    return max(1, 2**24 * problem.room // (2 * boxes * _cells(problem)))


def _cells(problem: NetworkPair) -> int:
    """Values of all nodes."""
    return sum(_size(node.shape) for node in problem.graph.nodes)


def both_ends(flow: Relaxation, y: Relaxed, index: Tensor) -> tuple[Tensor, Tensor]:
    """Upper and lower bounds of f − g for these outputs, (boxes, outputs)."""
    toward = both_directions(y.d, index.expand(len(y.d), -1))
    high, low = flow.above(y, None, toward).chunk(2)
    return high.T.detach(), -low.T.detach()


def all_by_chain(problem: NetworkPair) -> bool:
    """Whether both networks are chains of dense layers for which all passes are made without a
    probe: then they need no tape.
    """
    if "all by chain" not in problem.shared:
        fits = output_cells(problem) <= problem.effort and _is_cheap(problem)
        problem.shared["all by chain"] = fits and is_dense(problem)
    found: bool = problem.shared["all by chain"]
    return found


_BATCH = 16
"""Boxes between two looks at the clock, where there is a time limit."""

_COMPILED = 2e5
"""Cells of passes of a box from which they run compiled: loading that takes 0.3 s, in which torch
bounds some hundred boxes of a smaller network. Not by the number of boxes: what a box gets may not
depend on its company.
"""


def _by_chain(problem: NetworkPair, domain: Domain) -> MethodBounds:
    chain = chain_of(problem)
    if chain is None:
        raise Skip("the networks are not chains of dense layers")
    found = domain.lo.new_full((len(domain), problem.outputs), torch.inf)
    limited = math.isfinite(problem.clock.seconds)
    numbers = 2**25 * problem.room // chain.numbers_of_a_box
    size = max(1, min(_BATCH if limited else len(domain), numbers))
    pace, done = Pace(clock=problem.clock), 0
    run = chain.bounds if neuron_cells(problem) > _COMPILED else chain.bounds_in_torch
    for part in domain.split(size):
        if not pace.allows(len(part)):
            break
        bounds = run(part.lo.flatten(1), part.hi.flatten(1))
        found[done : done + len(part)] = bounds.per_output
        done += len(part)
        pace.done(f"linear: {done} of {len(domain)} boxes")
    late = f"linear: time was up after {done} of {len(domain)} boxes"
    return MethodBounds(per_output=found, remarks=(late,) if done < len(domain) else ())


# Runs the requested methods within the available time, and says why others do not apply.

_BACKWARD = ("affine", "linear")
"""The costly methods that a hopeless box, or one that zonotopes have bounded well, is spared."""

_COSTLY = {"affine": 0.3, "zonotope": 0.8, "linear": 1.0}
"""The methods that watch the time, with the share of what is left that they may spend."""

TOO_LOOSE = (
    "skipped: the cheap bounds are already a million times the output range, and a full pass"
    " exceeds effort=. Use a smaller radius, or pass seconds= or methods= to run it anyway."
)

_PASSED = (
    "linear makes passes from all neurons here, for a fraction of the time. Name zonotope without"
    " linear to compute it"
)

_NEAR_ENOUGH = (
    "zonotope has more symbols, and its bound is within the range of the outputs. Name {0} without"
    " zonotope to compute it"
)

_SPARED = (
    "linear makes all its passes here and was the tighter one in 279 of 280 boxes measured, for a"
    " fraction of the time. Name affine without linear to compute it"
)


def run_methods(
    problem: NetworkPair, domain: Domain, names: Sequence[str], *, spare: bool = False
) -> tuple[dict[str, MethodBounds], dict[str, str]]:
    """Run the methods on these boxes; returns what each proves, and why others do not apply.

    When the time is up, methods that have started keep what they proved so far; the cheap ones
    always finish, so that there is a bound.

    spare: leave boxes out of the costly methods if these are hopeless.
    """
    proven: dict[str, MethodBounds] = {}
    skipped: dict[str, str] = {}
    if curved := next((n for n in problem.graph.nodes if isinstance(n, Opaque)), None):
        skipped = {name: _CURVED.format(curved.place) for name in names if name not in _CURVES}
        names = [name for name in names if name in _CURVES]
    if {"affine", "linear"} <= set(names) and contains_forms(problem, domain):
        skipped["affine"] = (
            "linear computes the same forms here, as its forward bounds, so it is at least as tight"
        )
    spared = {"affine", "linear"} <= set(names) and outdoes_forms(problem)
    if {"zonotope", "linear"} <= set(names):
        why = _leaves_out_zonotopes(problem, domain)
        skipped |= {"zonotope": why} if why else {}
    spare = spare and beyond_effort(problem)
    rest = torch.ones(len(domain), dtype=torch.bool, device=domain.lo.device)
    near: Tensor | None = None

    # Methods that may be left out come last: they are computed if the others do not apply.
    def last(name: str) -> tuple[bool, bool]:
        return spare and name in _BACKWARD, spared and name == "affine"

    for name in sorted(names, key=last):
        if name in _BACKWARD and "zonotope" in proven:
            near = _near(problem, domain, proven["zonotope"]) if near is None else near
            rest = rest & ~near
            if bool(near.all()):
                skipped.setdefault(name, _NEAR_ENOUGH.format(name))
                continue
        if spare and name in _BACKWARD:
            rest, spare = rest & ~_hopeless(problem, domain, proven), False
        if name in _BACKWARD and not bool(rest.any()):
            skipped[name] = skipped.get(name, TOO_LOOSE)
            continue
        if name in skipped:
            continue
        if spared and name == "affine" and "linear" in proven:
            skipped[name] = _SPARED
            continue
        chosen = domain if bool(rest.all()) or name not in _COSTLY else domain[rest]
        try:
            with torch.no_grad():
                found = _join(_timely(problem, name, chosen.split(problem.boxes_at_a_time)))
        except Skip as reason:
            skipped[name] = str(reason)
            continue
        proven[name] = found if chosen is domain else _among(found, rest, name)
    return proven, skipped


_CURVES = ("interval", "affine", "zonotope", "linear")
"""The methods that bound functions beyond the five primitives."""

_CURVED = "it bounds piecewise linear networks alone, not the {}"


def beyond_effort(problem: NetworkPair) -> bool:
    """Whether the effort does not suffice for passes from all neurons, which would take minutes."""
    return neuron_cells(problem) > problem.effort


_FAR, _NEAR = 1e6, 30.0
"""Times the range of the outputs: cheap bounds above the first are looked at closer, and a probe
that promises no less than the second, if passes from all neurons were made, leaves no hope. Either
alone would be wrong: on tiny balls `linear` gains a factor of 10⁷ over intervals.
"""


def _hopeless(problem: NetworkPair, domain: Domain, proven: Mapping[str, MethodBounds]) -> Tensor:
    """Boxes whose current bounds are so far above the range of their own outputs that no costly
    method could bring them near it.
    """
    if not proven:
        return torch.zeros(len(domain), dtype=torch.bool, device=domain.lo.device)
    bound = torch.stack([one.per_output for one in proven.values()]).amin(dim=0).amax(dim=1)
    span = _span(problem, domain)
    # Written so that overflowing outputs, whose range is NaN, count as promising.
    far: Tensor = bound > _FAR * span
    for box in far.nonzero().flatten().tolist():
        *_, promised = _guess(problem, domain[box : box + 1])
        far[box] = bool(promised.amax() > _NEAR * span[box])
    return far


def _span(problem: NetworkPair, domain: Domain) -> Tensor:
    """The range of the outputs of f on each box, or their size if that is larger."""
    spans = []
    with torch.no_grad():
        for part in domain.split(problem.boxes_at_a_time):
            # For each box separately: its result may not depend on other boxes.
            y = torch.stack([problem.dense(x) for x in (part.lo, part.center, part.hi)], dim=1)
            spread = y.amax(dim=(1, 2)) - y.amin(dim=(1, 2))
            spans.append(torch.maximum(spread, y.abs().amax(dim=(1, 2))))
    return torch.cat(spans)


def _near(problem: NetworkPair, domain: Domain, found: MethodBounds) -> Tensor:
    """Boxes of a large network that are bounded as well as costlier methods might."""
    if not beyond_effort(problem):
        return torch.zeros(len(domain), dtype=torch.bool, device=domain.lo.device)
    return found.per_output.amax(dim=1) <= _span(problem, domain)


_MAPPED = 10
"""Zonotopes may take this many times the cells of `effort`: a cell of a map of generators costs a
third or less of one of a backward pass.
"""


def _leaves_out_zonotopes(problem: NetworkPair, domain: Domain) -> str:
    """Why zonotopes are not computed beside `linear`; empty if they are."""
    if not beyond_effort(problem):
        return _PASSED
    cells = _cells_of_maps(problem, domain)
    if cells > _MAPPED * problem.effort:
        return (
            f"{_varying(domain)} symbols take {cells:.1e} cells of maps, and {_MAPPED} times effort"
            f" = {problem.effort:.1e} are allowed; say effort= to allow more, or let fewer inputs"
            " vary"
        )
    return ""


def _symbols_of_zonotopes(problem: NetworkPair, domain: Domain) -> int:
    """As many as can be kept for the widest layer; for more inputs than that one each, and as many
    again for neurons, if their maps are affordable.
    """
    kept, open_ = _ZONOTOPES // problem.widest, _varying(domain)
    if _cells_of_maps(problem, domain) > _MAPPED * problem.effort:
        return kept
    return max(kept, 2 * open_)


def _varying(domain: Domain) -> int:
    """Inputs that vary, in the box with most of them."""
    return int((domain.widths != 0).flatten(1).sum(dim=1).max())


def _cells_of_maps(problem: NetworkPair, domain: Domain) -> float:
    """What the maps of a symbol for each input take."""
    return float(_varying(domain)) * _cells(problem)


def _among(found: MethodBounds, chosen: Tensor, name: str) -> MethodBounds:
    """Extend the bounds of some boxes to all boxes; the others get none (infinity)."""
    per_output = found.per_output.new_full((len(chosen), found.per_output.shape[1]), torch.inf)
    per_output[chosen] = found.per_output
    whole = None
    if found.whole is not None:
        whole = found.whole.new_full((len(chosen),), torch.inf)
        whole[chosen] = found.whole
    ends = None
    if found.ends is not None:
        ends = -torch.full_like(per_output, torch.inf), torch.full_like(per_output, torch.inf)
        for end, known in zip(ends, found.ends, strict=True):
            end[chosen] = known
    text = f"{name}: {int((~chosen).sum())} hopeless box(es) were left out"
    remarks = (*found.remarks, text)
    return replace(found, per_output=per_output, whole=whole, ends=ends, remarks=remarks)


def _timely(problem: NetworkPair, name: str, parts: Sequence[Domain]) -> list[MethodBounds]:
    """Run the method on each part in turn, with a share of the time, until it is up."""
    found: list[MethodBounds] = []
    # The cheap ones never check the clock, so that there is always a bound.
    if name not in _COSTLY:
        for number, part in enumerate(parts):
            found.append(METHODS[name](problem, part))
            problem.clock.report(f"{name}: part {number + 1} of {len(parts)}")
        return found
    clock = problem.clock.within(_COSTLY[name])
    for number, part in enumerate(parts):
        if clock.late():
            if not found:
                raise Skip(
                    f"no time was left of the {problem.clock.seconds:g} seconds; say seconds= to"
                    " allow more"
                )
            return [*found, *_no_bounds(problem, name, parts, number)]
        # Time that an early part leaves over is shared by the later ones.
        own = replace(problem, clock=clock.within(1 / (len(parts) - number)))
        found.append(METHODS[name](own, part))
        problem.clock.report(f"{name}: part {number + 1} of {len(parts)}")
    return found


def _no_bounds(
    problem: NetworkPair, name: str, parts: Sequence[Domain], number: int
) -> list[MethodBounds]:
    """Infinite bounds for the parts that were not reached."""
    text = f"{name}: time was up after {number} of {len(parts)} parts of the boxes"
    return [
        MethodBounds(
            per_output=part.lo.new_full((len(part), problem.outputs), torch.inf),
            remarks=(text,),
            complete=True,
        )
        for part in parts[number:]
    ]


def _join(parts: list[MethodBounds]) -> MethodBounds:
    """Join the bounds of all boxes; a NaN (from ∞·0) proves nothing and becomes ∞."""
    per_output = (
        torch.cat([part.per_output for part in parts])
        .detach()
        .nan_to_num(nan=torch.inf, posinf=torch.inf)
    )
    ends = None
    # Parts that were not reached in time say nothing of f.
    if all(part.ends is not None for part in parts):
        low, high = (
            torch.cat([end.detach() for end in each])
            for each in zip(*(part.ends or () for part in parts), strict=True)
        )
        # An end that is NaN or beyond all numbers comes from an overflow.
        ends = (
            low.nan_to_num(nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf),
            high.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=torch.inf),
        )
    wholes = [part.whole for part in parts if part.whole is not None]
    whole = torch.cat(wholes).nan_to_num(nan=torch.inf, posinf=torch.inf) if wholes else None
    return MethodBounds(
        per_output=per_output,
        whole=whole,
        ends=ends,
        remarks=tuple({r: None for part in parts for r in part.remarks}),
        complete=all(part.complete for part in parts),
    )


# The relaxed output of two networks on some boxes, within the available effort and time.


def relax(problem: NetworkPair, domain: Domain) -> tuple[Relaxation, Relaxed]:
    """The relaxed output of the network pair on these boxes, with the flow that bounds directions
    of it.

    If backward passes for all neurons would cost more than the effort, affine forms bound the
    others, or intervals if forms do not fit. If the passes cost a good part of the effort, each box
    is probed first, and those that would gain little keep intervals.

    A second call for the same boxes (a claim after a bound, `Certificate.certified`) reuses what
    passes from neurons proved the first time, unless they were cut short.
    """
    before = problem.shared.setdefault("relaxed", _Relaxations())
    kept = before.of(problem, domain)
    if kept is not None:
        forms = AffineForms(symbols=symbols(problem), unit=problem.unit) if kept.by_forms else None
        return relax_with(problem, domain, 0.0, forms, kept.known)
    flow, y = _relax(problem, domain)
    if not flow.hurried:
        before.keep(problem, domain, flow)
    return flow, y


@dataclass(frozen=True, slots=True, kw_only=True)
class _PassedBounds:
    """For some boxes, under the same effort: what passes proved, and whether forms were used."""

    lo: Tensor
    hi: Tensor
    settings: tuple[float, float, int | None]
    known: Improved
    by_forms: bool


class _Relaxations:
    """The last few results for a pair of networks."""

    _MOST = 8
    _NUMBERS = 2**22
    """32 MB in float64."""

    def __init__(self) -> None:
        self.kept: list[_PassedBounds] = []

    def of(self, problem: NetworkPair, domain: Domain) -> _PassedBounds | None:
        """What was proved on exactly these boxes."""
        for one in self.kept:
            if (
                one.settings == (problem.effort, problem.unit, problem.symbols)
                and torch.equal(one.lo, domain.lo)
                and torch.equal(one.hi, domain.hi)
            ):
                return one
        return None

    def keep(self, problem: NetworkPair, domain: Domain, flow: Relaxation) -> None:
        """Keep a result; the oldest ones are dropped."""
        self.kept.append(
            _PassedBounds(
                lo=domain.lo,
                hi=domain.hi,
                settings=(problem.effort, problem.unit, problem.symbols),
                known=Improved(bounds=tuple(flow.proven), loose=flow.loose),
                by_forms=isinstance(flow.inner, AffineForms),
            )
        )
        while len(self.kept) > self._MOST or sum(map(_numbers, self.kept)) > self._NUMBERS:
            self.kept.pop(0)


def _numbers(kept: _PassedBounds) -> int:
    return sum(b.l.numel() + b.gl.numel() + b.dl.numel() for b in kept.known.bounds) * 2


def _relax(problem: NetworkPair, domain: Domain) -> tuple[Relaxation, Relaxed]:
    cells = output_cells(problem)
    if cells > problem.effort:
        raise Skip(
            f"{problem.outputs} outputs need {cells:.1e} cells of backward passes per box, effort"
            f" is {problem.effort:.1e}; say effort= to allow more"
        )
    if neuron_cells(problem) > problem.effort:
        # A fifth of the time is kept for intervals, in case the forms give up.
        late = Pace(clock=problem.clock.within(0.8)).late("linear: affine forms")
        forms = AffineForms(symbols=symbols(problem), unit=problem.unit, late=late)
        try:
            return relax_with(problem, domain, problem.effort - cells, forms)
        except TooLarge:
            # Too many symbols, or too little time.
            flow, y = _probe(problem, domain, problem.effort - cells)
            flow.hurried |= math.isfinite(problem.clock.seconds)
            return flow, y
    return _probe(problem, domain, problem.effort - cells)


_CHEAP = 1 / 20
"""Passes for all neurons that cost less than this share of the effort are not worth a probe."""

_CHEAP_ON_WINDOWS = 1 / 4
"""The same for networks of convolutions whose passes all run on windows.

A ResNet-8 of a seventh of the effort takes 0.8 s a ball; a probe that says no there left the bound
30 % above that of affine forms, which take 2.5 s.
"""

_WORTH = 2 / 3
"""A box is worth the passes if they promise to lower its bound to less than this share of it."""


def _probe(problem: NetworkPair, domain: Domain, effort: float) -> tuple[Relaxation, Relaxed]:
    if _is_cheap(problem) or neuron_cells(problem) > problem.effort:
        return relax_with(problem, domain, effort, None)
    flow, y, now, then = _guess(problem, domain)
    # Written so that a NaN, of bounds that overflow, counts as promising.
    promising = ~(then.sum(dim=1) >= _WORTH * now.sum(dim=1))
    if not bool(promising.any()):
        return flow, y
    return relax_with(problem, domain, effort * promising, None)


def _guess(problem: NetworkPair, domain: Domain) -> tuple[Relaxation, Relaxed, Tensor, Tensor]:
    """The relaxed output without passes; bounds of its widest outputs; and the bounds that passes
    from all neurons promise for these.
    """
    flow, y = relax_with(problem, domain, 0.0, None)
    with torch.enable_grad():
        probe = Probe(unit=problem.unit)
        guess = propagate(problem.graph, probe, [problem.flow_input(domain)], problem.pair)
    # Ten outputs are enough, those with the widest intervals.
    wide = flow.bounds(y).largest.flatten(1).detach().expand(len(domain), -1)
    index = wide.topk(min(10, wide.shape[1]), dim=1).indices
    return flow, y, largest(flow, y, index), largest(probe, guess, index)


def relax_with(
    problem: NetworkPair,
    domain: Domain,
    effort: float | Tensor,
    inner: AffineForms | None,
    known: Improved | None = None,
) -> tuple[Relaxation, Relaxed]:
    layers = sum(isinstance(node, _BENT) for node in problem.graph.nodes)
    # The outputs need the rest of the time, and forms some to be carried to the end, without which
    # everything else is useless.
    share = 0.8 if inner is None else 0.4
    flow = Relaxation(
        effort=effort,
        unit=problem.unit,
        pace=Pace(clock=problem.clock.within(share)),
        inner=inner,
        layers=layers if neuron_cells(problem) > problem.effort else 1,
        ahead=layers,
        known=known,
    )
    # The tape is autograd's, and the methods run under no_grad.
    with torch.enable_grad():
        y = propagate(problem.graph, flow, [problem.flow_input(domain)], problem.pair)
    return flow, y


def contains_forms(problem: NetworkPair, domain: Domain) -> bool:
    """Whether `relax` will take its forward bounds from affine forms: computing these separately,
    too, would double the cost and could not be tighter.
    """
    affordable = output_cells(problem) <= problem.effort < neuron_cells(problem)
    return affordable and _varying(domain) <= symbols(problem)


_DEAR = 5e6
"""Cells of affine forms below which they cost less than some 0.1 s a box and are always computed.

For what they were worth above it see benchmarks/results/certificate_quality.md.
"""

_DEAR_BESIDE_CHAINS = 1e6
"""The same where `linear` takes a hundredth of a second a box: there forms took six times as long
(784 inputs, three layers of 100), and were the tighter ones for one of 240 boxes, by 1 %.
"""


def outdoes_forms(problem: NetworkPair) -> bool:
    """Whether `linear` makes all its passes without a probe, and affine forms cost so much that
    they are then left out.

    If boxes are probed first (max-pools of convolutions), forms may be 2 % tighter.
    """
    most = min(symbols(problem), relaxable(problem))
    forms = most * _cells(problem)
    dear = _DEAR_BESIDE_CHAINS if all_by_chain(problem) else _DEAR
    return _is_cheap(problem) and output_cells(problem) <= problem.effort and forms > dear


# What passes cost: cells of the maps that they go through.


def _is_cheap(problem: NetworkPair) -> bool:
    """Whether all passes cost so little that no probe is needed."""
    layers = list(_layers(problem))
    on_windows = all(windows for _, _, windows in layers) and any(
        isinstance(node, Affine) and node.operation.sliding is not None
        for node in problem.graph.nodes
    )
    share = _CHEAP_ON_WINDOWS if on_windows else _CHEAP
    return neuron_cells(problem) <= share * problem.effort


def output_cells(problem: NetworkPair) -> int:
    """Cells of backward passes from the outputs alone."""
    return 2 * problem.outputs * _cells(problem)


def neuron_cells(problem: NetworkPair) -> float:
    """Cells of backward passes from every neuron of every layer."""
    # Six directions per neuron: both ends of z, of z' and of δ.
    return sum(6.0 * neurons * cells for neurons, cells, _ in _layers(problem))


def _layers(problem: NetworkPair) -> Iterator[tuple[int, int, bool]]:
    """For each relaxed layer: neurons, cells of one pass, and whether it is on windows."""
    before, nodes = 0, dict[str, Node]()
    for node in problem.graph.nodes:
        if isinstance(node, _BENT):
            behind = cone(nodes, node.inputs[0])
            windows = behind is not None and behind.cells <= WIDE * before
            # Through everything before it, or through the windows that it depends on.
            cells = behind.cells if behind is not None and windows else before
            yield _size(nodes[node.inputs[0]].shape), cells, windows
        before += _size(node.shape)
        nodes[node.name] = node


def relaxable(problem: NetworkPair) -> int:
    """How many symbols there can be: one per input, two per neuron."""
    nodes = problem.graph.nodes
    relaxing = sum(_size(node.shape) for node in nodes if isinstance(node, _BENT))
    return sum(_size(node.shape) for node in problem.graph.inputs) + 2 * relaxing


def symbols(problem: NetworkPair) -> int:
    """The maximal number of symbols in one affine form."""
    if problem.symbols is not None:
        return problem.symbols
    # 2²³ numbers in float64 are 64 MB.
    return max(1, 2**23 // problem.widest)


def _size(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
