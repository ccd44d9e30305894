"""`certify`: checks its arguments, runs the methods in order of cost until the bound is good
enough, and states the result with all assumptions.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from numbers import Integral, Real
from typing import Literal, TypedDict, Unpack

import torch
from torch import Tensor, nn

from secateurs.base.progress import Progress, show_progress
from secateurs.base.registry import refuse_unknown, unknown
from secateurs.errors import (
    ArgumentError,
    DomainError,
    StructureMismatch,
    TheoryError,
    UnknownNameError,
    UnsupportedOperation,
)
from secateurs.proof.certificate import (
    Certificate,
    Proof,
    Split,
    SplitClaim,
    consistent,
    norm_of,
)
from secateurs.proof.compared import of_one_output
from secateurs.proof.domain import BoxEnds, Domain, ball_domain, box_domain
from secateurs.proof.ending import error_of, explain
from secateurs.proof.methods import (
    METHODS,
    TOO_LOOSE,
    MethodBounds,
    automatic,
    beyond_effort,
    run_methods,
)
from secateurs.proof.problem import (
    OWN_UNIT,
    Differences,
    NetworkPair,
    Pace,
    TimeLimit,
    read_problem,
)
from secateurs.proof.record import ALONE, Request, Rounding, StateHashes
from secateurs.proof.search import Found, search
from secateurs.proof.splitting import Parts, SplitProof, split, volume_shares
from secateurs.proof.top_class import ClassAnswer, TopClass, check_classes


class CertifyOptions(TypedDict, total=False):
    """The keywords of `certify` with a good default; see `CertifySettings`."""

    restarts: int
    steps: int
    effort: float
    symbols: int | None
    seconds: float | None
    progress: Progress | None
    generator: torch.Generator | None
    output: str | int | None
    target: float | None
    claim: Literal["top-1"] | None
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifySettings:
    """The values of `CertifyOptions`, checked.

    Attributes:
        restarts, steps: Those of the search for a lower bound.
        effort: Cells of backward passes per box.
        symbols: The limit for one affine form, None for what fits into memory.
        seconds: The limit for the total time, None for no limit.
        progress: Called with a line of text after each step.
        generator: Source of the search's random starts.
        output: Which output of the models.
        target: The bound that splitting should reach, None for no splitting.
        claim: What is proven besides the bound, "top-1" or nothing.
        margin: By how much f has to lead for the claim to cover an input.
    """

    restarts: int = 4
    steps: int = 10
    effort: float = 1e9
    symbols: int | None = None
    seconds: float | None = None
    progress: Progress | None = None
    generator: torch.Generator | None = None
    output: str | int | None = None
    target: float | None = None
    claim: Literal["top-1"] | None = None
    margin: float = 0.0

    def __post_init__(self) -> None:
        if self.claim not in (None, "top-1"):
            raise ArgumentError(f"claim={self.claim!r} is not offered; choose 'top-1' or None.")
        if not (self.margin == 0 or (_positive(self.margin) and math.isfinite(self.margin))):
            raise ArgumentError(f"margin={self.margin!r}: give a finite number of at least 0.")
        if self.margin and self.claim is None:
            raise ArgumentError(f"margin={self.margin!r} applies only to claim='top-1'.")
        if self.claim is not None and self.target is not None:
            raise ArgumentError(
                f"claim={self.claim!r} with target={self.target!r}: ask one question at a time."
            )
        if not (_whole(self.restarts, 0) and _whole(self.steps, 0)):
            raise ArgumentError(
                f"restarts={self.restarts!r}, steps={self.steps!r}: give whole numbers of at least "
                "0."
            )
        if self.seconds is not None and not _positive(self.seconds):
            raise ArgumentError(f"seconds={self.seconds!r}: give a positive number of seconds.")
        if self.target is not None and not (_positive(self.target) or self.target == 0):
            raise ArgumentError(
                f"target={self.target!r}: give a number of at least 0; with target=0, boxes are "
                "split until time runs out."
            )
        if self.target == 0 and self.seconds is None:
            raise ArgumentError(
                "networks that differ never reach target=0: give seconds= as well, or the "
                "deviation you allow."
            )
        if not _positive(self.effort):
            raise ArgumentError(
                f"effort={self.effort!r}: give a positive number of cells, such as 1e9."
            )
        if self.symbols is not None and not _whole(self.symbols, 1):
            raise ArgumentError(
                f"symbols={self.symbols!r}: give a whole number of at least 1, or None for as many "
                "as fit in memory."
            )

    @property
    def limit(self) -> float:
        """The seconds as a number; infinite without a limit."""
        return math.inf if self.seconds is None else float(self.seconds)


@torch.inference_mode(False)  # planes and the search for a lower bound take gradients
def certify(
    dense: nn.Module,
    sparse: nn.Module,
    *,
    box: BoxEnds | None = None,
    around: Tensor | None = None,
    radius: float | None = None,
    clip: tuple[float, float] | None = None,
    example: Tensor | None = None,
    methods: str | Sequence[str] = "auto",
    norm: float = math.inf,
    rounding: Rounding = "auto",
    **options: Unpack[CertifyOptions],
) -> Certificate:
    """Bound ‖f(x) − g(x)‖ for every x of a domain, f the dense and g the changed network.

    Args:
        dense, sparse: two models of one structure (anything `capture` reads), in eval mode.
        box: (lo, hi), tensors with the batch dimension of the input, or numbers together with
            `example`.
        around, radius, clip: ℓ∞-balls around the inputs of a batch, cut to a valid range such as
            (0, 1).
        methods: "auto" (the minimum over all, per box and output), one name, or a list of names
            from `METHODS`. The three methods that are never below two-stream are computed only when
            named, zonotopes only where passes from all neurons exceed `effort`. If no method could
            come near the range of the outputs, "auto" leaves the costly ones out, unless `seconds`
            says how long they may take; `skipped` says so, and what would help.
        norm: 1, 2 or inf over the outputs.
        rounding: "auto" covers the float64 arithmetic of the certificate itself; True also covers
            the evaluation of both networks in their own precision (γ_n bounds, any order of
            summation); False covers neither.
        example: one input, if the box is given by numbers.
        output: which output, if the models return several; see `capture`. The others are not
            covered, and `assumptions` says so.
        restarts, steps: of the search for a lower bound, 4 and 10; with 0 restarts only the centre
            is evaluated.
        effort: a limit on cells of backward passes of the linear relaxation, per box, 1e9. If it
            does not suffice for all neurons, those that lose most come first, and affine forms
            bound the others. If all neurons cost more than a twentieth of it, a few are tried
            first, and boxes that would gain less than a third keep intervals.
        symbols: the maximal number of symbols in one affine form (memory grows with it); None for
            what fits into 64 MB per value.
        seconds: the total time allowed, None for no limit. The cheap methods always finish; the
            result says what was cut short, and holds the best bound so far.
        target: the deviation that is allowed. If the bound is above it, boxes are repeatedly cut in
            two until it is proven on every part, an input beyond it is found, or the time is up;
            `Certificate.answer` says which. 0 makes the bound as small as the time allows. For
            small inputs only: with n of them, halving all widths makes 2ⁿ parts.
        claim: "top-1" asks whether both networks predict the same class: boxes are split as for a
            target until that is proven everywhere, a counterexample is found, or the time is up.
            `Certificate.answer` and `Certificate.claim` say which.
        margin: the claim covers inputs where f's largest output exceeds every other by more than
            this (δ-top-1); 0 covers all but ties.
        progress: called with a line of text after each step. Without it, the line is shown where
            standard error is a terminal.
        generator: source of the search's random starts.

    Nothing is assumed silently: requested methods whose assumptions fail are left out, and
    `skipped` says why. What follows from held-out inputs for fresh ones, `statistical` says.

    >>> import torch
    >>> dense = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.constant_(dense.weight, 1.0)
    >>> sparse = nn.Linear(2, 1, bias=False)
    >>> sparse.weight.data = torch.tensor([[1.0, 0.0]])
    >>> cert = certify(dense, sparse, box=(torch.zeros(1, 2), torch.tensor([[1.0, 3.0]])))
    >>> round(cert.bound, 9), round(cert.lower_bound, 9)
    (3.0, 3.0)

    Reference: Gonon et al. 2024, Theorems 3.1 and C.1; the other methods are ours or cited where
    they are defined.
    """
    if "data" in options:
        raise ArgumentError(
            "certify bounds a domain and takes no data=: statistical(dense, sparse, data=...) says"
            " what held-out inputs show. For a ball around each of them give around=, a tensor, and"
            " radius=."
        )
    wanted = check_options(methods, norm, rounding)
    chosen = settings(options, certify)
    with show_progress(chosen.progress, "certify") as say:
        domain = _domain(
            box, _out_of_inference_mode(around), radius, clip, _out_of_inference_mode(example)
        )
        try:
            problem = read_problem(
                dense,
                sparse,
                domain.example,
                output=chosen.output,
                ending=True,
                unit=0.0 if rounding is False else OWN_UNIT,
                effort=chosen.effort,
                symbols=chosen.symbols,
                clock=TimeLimit(seconds=chosen.limit, tell=say),
            )
        except (UnsupportedOperation, StructureMismatch) as error:
            raise type(error)(
                f"{error} Any two modules can be compared on held-out data: statistical(dense,"
                " sparse, data=...) bounds how often predictions change."
            ) from error
        # Only now, after `read_problem` has refused sharded weights, which no single process could
        # hash.
        networks = {"dense": dense, "sparse": sparse}
        copies = {who: own.state for who, own in zip(networks, problem.own, strict=True)}
        states = StateHashes(networks, copies)
        _check_casts(problem, rounding)
        problem.clock.report("both networks are read")
        find = partial(
            search_boxes, problem, domain, steps=chosen.steps, generator=chosen.generator
        )
        bound = partial(prove, problem, domain, methods=wanted, norm=norm, rounding=rounding)
        # A bound below a difference that was found is an error. The search comes first, since it
        # may take a third of the time; but named methods are run, and so are costly ones if a time
        # limit is given, and only without both may a bound be too loose for a thorough search to be
        # worth it.
        if methods == "auto" and chosen.seconds is None and beyond_effort(problem):
            proof = bound(spare=True)
            few = TOO_LOOSE in proof.skipped.values()
            starts = find(restarts=min(chosen.restarts, 1) if few else chosen.restarts)
        else:
            starts = find(restarts=chosen.restarts)
            proof = bound()
        found = problem.differences(starts.worst)
        split = claim = None
        if chosen.target is not None:
            split = split_for_target(proof, found, target=float(chosen.target), methods=wanted)
        if chosen.claim is not None:
            claim = compare_classes(proof, margin=float(chosen.margin), methods=wanted)
        return Certificate.of(proof, found, split=split, claim=claim, states=states)


# What was asked for: the keywords one by one, the domain, and what excludes each other.


def check_options(methods: str | Sequence[str], norm: float, rounding: Rounding) -> list[str]:
    """The names of the methods; an unknown method, norm or rounding is refused."""
    if norm not in (1, 2, math.inf):
        raise ArgumentError(f"norm={norm!r} is not offered; choose 1, 2 or inf.")
    if rounding not in (True, False, "auto"):
        raise ArgumentError(f"rounding={rounding!r} is not offered; choose 'auto', True or False.")
    return _methods(methods)


def _methods(methods: str | Sequence[str]) -> list[str]:
    if methods == "auto":
        names = automatic()
    else:
        # Each only once, however often it is named.
        names = [methods] if isinstance(methods, str) else list(dict.fromkeys(methods))
    wrong = [name for name in names if name not in METHODS]
    if wrong or not names:
        known = [*METHODS.names(), "auto"]
        if not wrong:
            raise ArgumentError(f"methods is empty; choose 'auto' or some of {', '.join(known)}.")
        raise UnknownNameError(
            "; ".join(unknown("certificate method", name, known) for name in wrong)
        )
    return names


def settings(
    options: CertifyOptions, function: Callable[..., object] = CertifySettings
) -> CertifySettings:
    """The keywords of a function as one checked value; a misspelt one is refused with a
    suggestion.
    """
    refuse_unknown(function, options, [field.name for field in fields(CertifySettings)])
    return CertifySettings(**options)


def _whole(value: object, least: int) -> bool:
    """Whether this is a whole number of at least this much, and not a boolean."""
    # NumPy's numbers are `Integral` and `Real` as well, and they are neither int nor float.
    if isinstance(value, bool) or not isinstance(value, Integral):
        return False
    return int(value) >= least


def _positive(value: object) -> bool:
    """Whether this is a number above 0, not NaN and not a boolean."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return float(value) > 0


def _domain(
    box: BoxEnds | None,
    around: Tensor | None,
    radius: float | None,
    clip: tuple[float, float] | None,
    example: Tensor | None,
) -> Domain:
    given = [name for name, value in (("box", box), ("around", around)) if value is not None]
    if len(given) == 2 or (box is not None and radius is not None):
        raise ArgumentError("give the domain as box=, or as around= with radius=, but not both.")
    if box is not None:
        return box_domain(box, example=example)
    if around is None:
        raise DomainError(
            "no domain was given: give box=(lo, hi), or around=x with radius=r. What held-out"
            " inputs show, statistical(dense, sparse, data=...) says."
        )
    return ball_domain(around, radius, clip=clip)


def _out_of_inference_mode(given: Tensor | None) -> Tensor | None:
    """A tensor made in inference mode, as one through which gradients may pass."""
    made_there = isinstance(given, Tensor) and given.is_inference()
    return given.clone() if given is not None and made_there else given


def _check_casts(problem: NetworkPair, rounding: Rounding) -> None:
    """Refuse models that change precision along the way, for whose evaluation there is no error
    bound.
    """
    casts = rounding_casts(problem)
    if casts and rounding is True:
        raise ArgumentError(
            f"rounding=True covers one precision throughout, but the model converts {casts[0]}"
            f"{f' and {len(casts) - 1} more' if casts[1:] else ''}. Remove the conversion, or use"
            " rounding='auto', which speaks of real numbers."
        )


# The lower bound: differences that are found by search.


def search_boxes(
    problem: NetworkPair,
    domain: Domain,
    *,
    restarts: int,
    steps: int,
    generator: torch.Generator | None = None,
) -> Found:
    """Search every box for large deviations, some boxes at a time.

    At most a third of the time is spent here, evenly over the boxes; the proof needs the rest.
    """
    # The search climbs from eight copies of each box: ± each of four outputs.
    size = max(1, 2**22 // (8 * problem.widest))
    # A climber on a ResNet-18 at 224×224 takes a second per step: there they move one after the
    # other, so that each step ends soon. Decided by size, not by time, so that a repeated search
    # finds the same differences.
    together = max(1, 2**20 // problem.widest)
    clock, boxes = problem.clock.within(1 / 3), domain.split(size)
    parts, pace = [], Pace(clock=problem.clock)
    for number, part in enumerate(boxes):
        own = clock.within(1 / (len(boxes) - number))
        parts.append(
            search(
                problem.difference,
                part.lo,
                part.hi,
                # Even when out of time, the centre of each box is evaluated, so that there is a
                # lower bound.
                restarts=0 if own.late() else restarts,
                steps=steps,
                generator=generator,
                together=together,
                left=own.left,
                tell=own.report,
                beat=pace.say,
            )
        )
    return Found(
        per_output=torch.cat([p.per_output for p in parts]),
        worst=torch.cat([p.worst for p in parts]),
    )


# The bound: the minimum of several methods per box and output.


def prove(
    problem: NetworkPair,
    domain: Domain,
    *,
    methods: Sequence[str],
    norm: float,
    rounding: Rounding,
    spare: bool = False,
) -> Proof:
    """The minimum of the methods per box and output.

    spare: leave boxes out of the costly methods where the cheap bounds are far too loose.
    """
    spare = spare and beyond_effort(problem)
    evaluated = replace(problem, evaluated=problem.dtype if rounding is True else None)
    proven, skipped = _require_bounds(evaluated, domain, methods, spare=spare)
    error = problem.added_errors(domain, rounding)
    evaluation = _evaluation_of_ending(problem, error, rounding)
    # Each output takes its best method; the error of evaluation in the models' own precision is
    # added, or that of computed weights, unless the method has covered it along the way.
    none = torch.zeros_like(error)
    covered = error if rounding is True else none
    added = {name: covered if reach.complete else error for name, reach in proven.items()}
    inner = torch.stack([r.per_output + added[name] for name, r in proven.items()]).amin(dim=0)
    low, high = ends_of_f(proven, added)
    per_box = problem.carried(inner, low, high) + evaluation
    if problem.ending is None:
        sizes = {name: _norm_over_outputs(r, added[name], norm) for name, r in proven.items()}
    else:
        # A joint bound for all outputs says nothing of what becomes of them.
        sizes = {
            name: norm_of(problem.carried(r.per_output + added[name], low, high) + evaluation, norm)
            for name, r in proven.items()
        }
    # The norm of the minima is at most each method's own norm, but a joint bound for all outputs
    # may still be smaller.
    balls = torch.stack([norm_of(per_box, norm), *sizes.values()]).amin(dim=0)
    worst = int(balls.argmax())
    return Proof(
        problem=problem,
        domain=domain,
        request=Request(
            methods=tuple(methods),
            norm=norm,
            rounding=rounding,
            effort=problem.effort,
            symbols=problem.symbols,
            output=problem.output,
            seconds=seconds if math.isfinite(seconds := problem.clock.seconds) else None,
            spare=spare or None,
        ),
        inner=inner,
        per_box=per_box,
        balls=balls,
        method=min(sizes, key=lambda name: float(sizes[name][worst])),
        bounds={name: float(size.max()) for name, size in sizes.items()},
        skipped=skipped,
        assumptions=assumptions_of(problem, proven, rounding),
    )


def ends_of_f(
    proven: Mapping[str, MethodBounds], added: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Below and above every output of f in front of its ending, by all methods that know."""
    known = [(one.ends, added[name]) for name, one in proven.items() if one.ends is not None]
    none = torch.full_like(next(iter(added.values())), math.inf)
    low = torch.stack([-none, *(ends[0] - error for ends, error in known)]).amax(dim=0)
    high = torch.stack([none, *(ends[1] + error for ends, error in known)]).amin(dim=0)
    return low, high


def _evaluation_of_ending(problem: NetworkPair, like: Tensor, rounding: Rounding) -> Tensor | float:
    """How far both maps at the end, evaluated in the models' own precision, lie from exact ones."""
    if problem.ending is None or rounding is not True:
        return 0.0
    if problem.ending.name == "log_softmax":
        raise ArgumentError(
            "rounding=True does not cover a log-softmax at the end, whose rounding grows with its"
            " outputs: use rounding='auto', or compare the models without it."
        )
    return 2 * error_of(problem.ending, like, torch.finfo(problem.dtype).eps / 2)


def _require_bounds(
    problem: NetworkPair, domain: Domain, methods: Sequence[str], *, spare: bool
) -> tuple[dict[str, MethodBounds], dict[str, str]]:
    """The bounds of the methods, and why others do not apply; an error if there are none."""
    proven, skipped = run_methods(problem, domain, methods, spare=spare)
    if not proven:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise TheoryError(f"no method applies here: {reasons}. Choose methods='auto'.")
    return proven, skipped


def _norm_over_outputs(reach: MethodBounds, error: Tensor, norm: float) -> Tensor:
    """The norm over the outputs, or the joint bound for all outputs if that is smaller."""
    size = norm_of(reach.per_output + error, norm)
    if reach.whole is None:
        return size
    return torch.minimum(
        size, reach.whole + norm_of(error.expand(-1, reach.per_output.shape[1]), norm)
    )


# Cutting boxes into parts, for a target or for a claim.


def split_for_target(
    proof: Proof,
    found: Differences,
    *,
    target: float,
    methods: Sequence[str],
    plan: Sequence[Parts] | None = None,
) -> Split:
    """What is proved after splitting the boxes for a target.

    plan: the parts of an earlier proof, to make the same one again.
    """
    problem, domain, request = proof.problem, proof.domain, proof.request
    if problem.ending is not None:
        raise ArgumentError(
            f"target={target!r}: boxes are cut for the outputs themselves, and these models end in"
            f" a {problem.ending.name}. Leave it out, and ask for what may enter it"
            " (docs/guarantees.md says how far it then moves)."
        )
    error = problem.added_errors(domain, request.rounding)
    added = norm_of(error, request.norm)
    # Evaluation adds its own errors to what splitting proves for real arithmetic.
    allowed = target - added
    # There is nothing to do, or nothing that could be done.
    lower = float(consistent(norm_of(found.least, request.norm), proof.balls).max())
    refuted = lower > target > 0
    impossible = target > 0 and not bool((allowed > 0).all())
    if plan is None and (proof.bound <= target or refuted or impossible):
        there = volume_shares(domain.lo, domain.hi)[proof.balls <= target]
        return Split(
            target=target,
            per_box=proof.per_box,
            balls=proof.balls,
            bound=proof.bound,
            parts=(Parts(cuts=(0,)),) * len(domain),
            share=float(there.sum().clamp(max=1)),
            witness=None,
        )
    made = split(
        problem,
        domain,
        proof.per_box,
        target=allowed,
        # With 0 the best bound is wanted, since any difference at all would be above it.
        refuting=target if target > 0 else math.inf,
        norm=request.norm,
        methods=methods,
        plan=plan,
    )
    per_box = torch.minimum(proof.per_box, made.per_output + error)
    balls = torch.minimum(proof.balls, made.balls + added)
    witness = None if made.witness is None else problem.differences(made.witness.unsqueeze(0))
    return Split(
        target=target,
        per_box=per_box,
        balls=torch.minimum(balls, norm_of(per_box, request.norm)),
        bound=float((made.balls + added).max()),
        parts=made.parts,
        share=made.share,
        witness=witness,
    )


def compare_classes(
    proof: Proof,
    *,
    margin: float,
    methods: Sequence[str],
    plan: Sequence[Parts] | None = None,
) -> SplitClaim:
    """The answer to the claim that both networks have one top class.

    plan: the parts of an earlier proof, to make the same one again.
    """
    problem, domain, request = proof.problem, proof.domain, proof.request
    if request.rounding is True:
        raise ArgumentError("claim='top-1' holds for real arithmetic only; use rounding='auto'.")
    check_classes(problem)
    slack = None
    if request.rounding == "auto":
        slack = torch.stack([error.amax(dim=0) for error in problem.weight_errors(domain)])
    claim = TopClass(margin=margin, slack=slack)

    def proved(plan: Sequence[Parts] | None) -> SplitProof:
        return split(
            problem,
            domain,
            proof.inner,
            target=domain.lo.new_zeros(len(domain)),
            refuting=0.0,
            norm=request.norm,
            methods=methods,
            plan=plan,
            claim=claim,
        )

    whole = [Parts(cuts=(0,))] * len(domain)
    made, counterexample = None, None
    # Where trying points costs as much as a proof, boxes that need no cut are spared it.
    if plan is None and beyond_effort(problem):
        made = proved(whole)
    if made is None or not made.complete:
        before = made
        counterexample = None if plan is not None else _counterexample(problem, domain, claim)
        made = proved(plan) if counterexample is None else None
        # There may have been no time for what was proven before.
        if before and made and made.witness is None and made.share < before.share:
            made = before
    parts: Sequence[Parts] = whole if made is None else made.parts
    share, complete = (0.0, False) if made is None else (made.share, made.complete)
    if made is not None and made.witness is not None:
        counterexample = made.witness
    answer: Literal["proven", "refuted", "open"] = "proven" if complete else "open"
    if counterexample is not None:
        answer = "refuted"
    return SplitClaim(
        answer=ClassAnswer(
            margin=margin, answer=answer, share=share, counterexample=counterexample
        ),
        parts=tuple(parts),
    )


_TRIED = 512
"""Points of each box that are tried before a claim is proved."""

_CLIMBERS, _CLIMBED = 32, 40
"""How many of the best of them climb, and for how many steps."""


def _counterexample(problem: NetworkPair, domain: Domain, claim: TopClass) -> Tensor | None:
    """A point that refutes the claim: the worst of some points spread over each box, or one reached
    from them by climbing.
    """
    inputs = domain.lo[0].numel()
    # The sequence is the same each time; torch supports no more dimensions.
    if inputs > torch.quasirandom.SobolEngine.MAXDIM:
        return None
    spread = torch.quasirandom.SobolEngine(inputs)  # type: ignore[no-untyped-call]
    share: Tensor = spread.draw(_TRIED, dtype=torch.float64)
    share = share.to(domain.lo.device).reshape(_TRIED, *domain.lo.shape[1:])
    size = max(1, 2**22 // problem.widest)
    for lo, hi in zip(domain.lo, domain.hi, strict=True):
        points, heights = [], []
        for part in torch.split(share, size):
            x = (lo + part * (hi - lo)).clamp(lo, hi)
            points.append(x)
            heights.append(claim.violation(*(network(x) for network in problem.own)))
            if problem.clock.late():
                break
        height = torch.cat(heights).nan_to_num(nan=-math.inf)
        x = torch.cat(points)[height.topk(min(_CLIMBERS, size, len(height))).indices]
        found = _climb(problem, claim, x, lo, hi)
        if found is not None or problem.clock.late():
            return found
    return None


def _climb(
    problem: NetworkPair, claim: TopClass, x: Tensor, lo: Tensor, hi: Tensor
) -> Tensor | None:
    """Climb by steps along the sign of the slope of `TopClass.violation`: where f is confident they
    lead to another class of g, elsewhere back to where f is confident.
    """
    for step in range(_CLIMBED + 1):
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            height = claim.violation(*(network(x) for network in problem.own))
        if bool((height > 0).any()):
            worst = x[int(height.nan_to_num(nan=-math.inf).argmax())].detach().clone()
            # What float64 finds may be its own rounding.
            if bool((claim.violation_at(problem, worst.unsqueeze(0)) > 0).any()):
                return worst
        if step == _CLIMBED or not height.requires_grad or problem.clock.late():
            break
        (slope,) = torch.autograd.grad(height.sum(), x)
        # From a quarter of the box down to a sixtieth.
        x = (x + 0.25 * 0.93**step * (hi - lo) * slope.sign()).clamp(lo, hi)
    return None


# The assumptions and checks of a certificate, in words.


def assumptions_of(
    problem: NetworkPair, proven: dict[str, MethodBounds], rounding: Rounding
) -> tuple[str, ...]:
    """What was checked, what is assumed about signs and arithmetic, and the methods' remarks."""
    signs = problem.signs
    checked = "checked: one graph for both networks, evaluation mode, finite parameters"
    pattern = "no sign assumption is used"
    if any(name in proven for name in ("path-metric", "path-metric-per-output", "input-weighted")):
        pattern = "checked: θθ' ≥ 0 everywhere" + (", |θ'| ≤ |θ|" if signs.dominated else "")
    arithmetic = (
        "networks of real numbers"
        if rounding == "auto"
        else "real arithmetic: rounding is not covered"
    )
    if rounding is True:
        precision = str(problem.dtype).removeprefix("torch.")
        arithmetic = (
            f"networks evaluated in {precision}, sums in any order, no TF32, Winograd or FFT"
            " convolutions"
        )
    casts = [f"counted as exact: the conversion {cast}" for cast in rounding_casts(problem)]
    graph = problem.own[0].graph
    several = len(graph.outputs) > 1
    one = [of_one_output(graph.outputs, graph.output_name)] if several else []
    mixing = dict.fromkeys(own.graph.alone for own in problem.own if own.graph.alone)
    alone = [f"{ALONE}: {how}" for how in mixing]
    ending = [] if problem.ending is None else [explain(problem.ending)]
    remarks = [remark for reach in proven.values() for remark in reach.remarks]
    return (checked, pattern, arithmetic, *one, *ending, *alone, *casts, *remarks)


def rounding_casts(problem: NetworkPair) -> list[str]:
    """The conversions in both networks that round."""
    return sorted({str(c) for own in problem.own for c in own.graph.casts if c.rounds})
