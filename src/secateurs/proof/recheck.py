"""Proves a kept certificate again, from its text and the two networks alone.

A record is a claim, and anybody can edit a text. So every number and every sentence of it is
compared with what is proved now, never with another line of the same record.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from secateurs.base.progress import Progress, show_progress
from secateurs.errors import ArgumentError
from secateurs.proof.certificate import Certificate, ratio
from secateurs.proof.certify import (
    CertifySettings,
    check_options,
    compare_classes,
    prove,
    split_for_target,
)
from secateurs.proof.domain import Domain
from secateurs.proof.kept import boxes_of_record, brief, read_parts, read_record, text_of
from secateurs.proof.problem import OWN_UNIT, NetworkPair, TimeLimit, read_problem
from secateurs.proof.record import (
    BoxesRecord,
    CertificateRecord,
    ClaimRecord,
    PairHashes,
    Request,
    Versions,
    as_json,
    domain_record,
    networks_of,
    states_of,
)
from secateurs.proof.splitting import Parts, cuttable
from secateurs.proof.top_class import TopClass

# Compares every claim of a record with what is proved now; disagreements are put into words.

WHO: tuple[Literal["dense", "sparse"], ...] = ("dense", "sparse")

_SLACK = 1e-9
"""Another machine may sum in another order: so small a share of a value counts as agreement."""


def other_networks(
    stated: CertificateRecord, networks: PairHashes, problem: NetworkPair, states: Mapping[str, str]
) -> list[str]:
    """How the given networks differ from those of the record."""
    now, found = networks_of(problem), list[str]()
    for who in WHO:
        real, claimed = getattr(now, who), getattr(networks, who)
        if real.weights != claimed.weights:
            found.append(f"the weights of the {who} network are not those certified")
        elif states[who] != getattr(stated.states, who):
            found.append(f"weights of the {who} network that its graph does not read differ")
        if real.graph != claimed.graph:
            found.append(
                f"the graph of the {who} network is not the one certified (read by torch"
                f" {stated.versions.torch}, now {torch.__version__})"
            )
    if now.dtype != networks.dtype:
        found.append(f"the networks are {now.dtype}, certified was {networks.dtype}")
    return found


def weaker_claims(stated: CertificateRecord, now: CertificateRecord) -> tuple[str, ...]:
    """Claims that are weaker than what is proved now."""
    if len(stated.per_output) != len(now.per_output):
        return ()
    found = [
        f"{what} is {value:.6g}, stated is {then:.6g}"
        for what, then, value in _bounds(stated, now)
        if value < then * (1 - _SLACK)
    ]
    kept, then = now.worth.kept or 0, stated.worth.kept or 0
    if then < kept:
        found.append(f"{kept} of {now.worth.boxes} are certified, stated are {then}")
    return tuple(found)


def _bounds(stated: CertificateRecord, now: CertificateRecord) -> list[tuple[str, float, float]]:
    """Each bound, with the stated value and the one proved now."""
    rows = [("the bound", stated.bound, now.bound)]
    rows += [
        (f"the bound of output {i}", then, value)
        for i, (then, value) in enumerate(zip(stated.per_output, now.per_output, strict=True))
    ]
    rows += [
        (f"the bound by {name}", then, now.bounds.get(name, math.inf))
        for name, then in stated.bounds.items()
    ]
    return rows


def wrong_bounds(stated: CertificateRecord, now: CertificateRecord) -> list[str]:
    """Stated bounds that are below the one proved now."""
    if len(stated.per_output) != len(now.per_output):
        return [f"{len(stated.per_output)} outputs are stated, not {len(now.per_output)}"]
    return [
        f"{what} proved now is {value:.6g}, above {then:.6g}"
        for what, then, value in _bounds(stated, now)
        # `not … <=` catches a NaN that an edited record might hold.
        if not value <= then * (1 + _SLACK)
    ]


def wrong_words(stated: CertificateRecord, now: CertificateRecord, request: Request) -> list[str]:
    """Texts around the bounds that disagree with the numbers."""
    problems = [
        f"the {name} is {str(real)!r}, not {str(claimed)!r}"
        for name in ("norm", "domain", "rounding")
        if (claimed := getattr(stated, name)) != (real := getattr(now, name))
    ]
    listed, expected = (_lasting_texts(request, record.assumptions) for record in (stated, now))
    problems += [f"the assumption {text!r} is missing" for text in expected if text not in listed]
    problems += [
        f"the assumption {text!r} is stated, but nothing here assumes it"
        for text in listed
        if text not in expected
    ]
    if len(listed) != len(set(listed)):
        problems.append("an assumption is listed twice")
    if stated.method not in now.bounds:
        problems.append(f"the method {stated.method!r} proves nothing here")
    if stated.verdict != stated.worth.text:
        problems.append(f"the verdict is {stated.worth.text!r}, not {stated.verdict!r}")
    return [*problems, *_methods(stated, now, request), *_sizes(stated, now)]


def _lasting_texts(request: Request, texts: Sequence[str]) -> list[str]:
    """The texts that another proof with more time would also contain."""
    if request.seconds is None:
        return list(texts)
    remarks = tuple(f"{name}: " for name in request.methods)
    return [text for text in texts if not text.startswith(remarks)]


def _methods(stated: CertificateRecord, now: CertificateRecord, request: Request) -> list[str]:
    """Methods that neither prove something nor are skipped for the stated reason."""
    bounds, skipped = stated.bounds.keys(), stated.skipped.keys()
    problems = [
        f"the method {name!r} is listed both as proving something and as skipped"
        for name in sorted(bounds & skipped)
    ]
    if request.methods != now.options.methods:
        problems.append("a method is requested twice")
    problems += [
        f"the record also holds 'options.{name}'"
        for name in ("target", "claim", "margin", "parts", "spare")
        if getattr(request, name) is not None and getattr(now.options, name) is None
    ]
    asked = now.bounds.keys() | now.skipped.keys()
    problems += [
        f"the method {name!r} "
        + (
            "is listed, but was not requested"
            if name in bounds | skipped
            else "was requested, but is not listed"
        )
        for name in sorted(asked ^ (bounds | skipped))
    ]
    # With a time limit, a method may have been skipped for that reason alone.
    if request.seconds is None:
        problems += [
            f"the method {name!r} is skipped because {now.skipped.get(name)!r}, not {reason!r}"
            for name, reason in stated.skipped.items()
            if name in asked and reason != now.skipped.get(name)
        ]
    return problems


def _sizes(stated: CertificateRecord, now: CertificateRecord) -> list[str]:
    """Problems with the range, the margin and the count of safe predictions."""
    problems = [
        f"the {name.replace('_', ' ')} is {real}, not {claimed}"
        for name in ("output_range", "smallest_margin")
        if not _close(
            claimed := getattr(stated, name), real := getattr(now, name), now.output_range or 1.0
        )
    ]
    # A record may state fewer safe predictions than are proved, never more.
    then, worth = stated.worth, now.worth
    if then.boxes != worth.boxes or (then.kept or 0) > (worth.kept or 0):
        problems.append(
            f"{worth.kept} of {worth.boxes} boxes are certified, not {then.kept} of {then.boxes}"
        )
    return problems


def wrong_facts(stated: CertificateRecord, boxes: BoxesRecord, now: Certificate) -> list[str]:
    """Problems with the deviation found: it must occur at a point of the domain."""
    lower, region = stated.lower_bound, now.region
    problems = []
    # Whether or not its input was kept, a lower bound is below every upper bound.
    if not lower <= now.bound * (1 + 1e-6):
        problems.append(f"found is {lower:.6g}, above the bound proved now, {now.bound:.6g}")
    if stated.worst_input is None and boxes.ends:
        problems.append("the boxes were saved, but the worst input was not")
    if not _close(stated.tightness, ratio(stated.bound, lower), 1.0):
        problems.append(
            f"bound / found is {ratio(stated.bound, lower):.6g}, not {stated.tightness:.6g}"
        )
    if stated.worst_input is None:
        return problems
    point = stated.worst_input.unsqueeze(0).to(region.lo.device)
    if point.shape[1:] != region.lo.shape[1:] or not bool(region.contains(point)):
        return [*problems, "the worst input lies outside the boxes"]
    with torch.no_grad():
        gap = now.problem.differences(point).least
    found = float(torch.linalg.vector_norm(gap, ord=now.norm))
    # A difference of large outputs cancels, so allow for the rounding of float64.
    slack = 1e-6 * found + _SLACK * (now.worth.output_range or 1.0)
    # The stated difference was cut off at the stated bound, which the one found may exceed.
    if lower > found + slack or lower < min(found, stated.bound) - slack:
        problems.append(f"at the worst input {found:.6g} is found, not {lower:.6g}")
    return problems


def cut_short(
    stated: CertificateRecord, now: CertificateRecord, request: Request
) -> tuple[str, ...]:
    """Remarks on a proof that was cut short, which do not apply to the one made now."""
    if request.seconds is None:
        return ()
    lasting = _lasting_texts(request, stated.assumptions)
    texts = [text for text in stated.assumptions if text not in lasting]
    texts += [
        f"{name} skipped: {reason}"
        for name, reason in stated.skipped.items()
        if reason != now.skipped.get(name)
    ]
    return tuple(f"what {request.seconds:g} seconds cut short: {text}" for text in texts)


def wrong_boxes(boxes: BoxesRecord, domain: Domain) -> list[str]:
    """Statements of the record about its boxes that do not match them."""
    real = as_json(domain_record(domain, inline=bool(boxes.ends), file=boxes.file))
    claimed = as_json(boxes)
    return [
        f"{name} of the boxes is {brief(real.get(name))}, not {brief(claimed.get(name))}"
        for name in dict.fromkeys((*claimed, *real))
        if claimed.get(name) != real.get(name)
    ]


def wrong_claim(claimed: ClaimRecord | None, now: Certificate) -> list[str]:
    """Problems with the claim about top classes: its proof, or its counterexample."""
    if claimed is None or now.claim is None:
        lacking = claimed is None and now.claim is not None
        return ["the record lacks 'claim'"] if lacking else []
    problems = []
    if not claimed.share <= now.claim.share + _SLACK:
        problems.append(
            f"the claim is proven on {now.claim.share:.6g} of the volume, not {claimed.share}"
        )
    if (claimed.answer == "refuted") != (claimed.counterexample is not None):
        problems.append(
            f"the claim is {claimed.answer!r}, and a counterexample is {claimed.counterexample}"
        )
    if claimed.answer == "proven" and now.claim.answer != "proven":
        problems.append("the claim is not proven by the parts that were kept")
    if claimed.counterexample is None:
        return problems
    x = claimed.counterexample.unsqueeze(0).to(now.region.lo.device)
    if x.shape[1:] != now.region.lo.shape[1:] or not bool(now.region.contains(x)):
        return [*problems, "the counterexample lies outside the boxes"]
    with torch.no_grad():
        wrong = TopClass(margin=now.claim.margin).violation_at(now.problem, x)
    if not bool(wrong > 0):
        problems.append(
            "at the counterexample both networks choose the same class, or f has no clear lead"
        )
    return problems


def _close(one: float | None, two: float | None, scale: float) -> bool:
    if one is None or two is None or math.isinf(one) or math.isinf(two):
        return one == two
    return abs(one - two) <= _SLACK * max(scale, abs(two))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recheck:
    """Whether a kept certificate holds, and what was found.

    Attributes:
        holds: Both networks are those of the record, and everything it states is proved again.
        bound: The bound proved now; NaN if the networks differ.
        stated: The bound in the record.
        problems: Disagreements, in words; empty if the certificate holds.
        open: Statements of the record that cannot be compared, with what they say.
        weaker: Bounds that it states larger than necessary: true, but weaker than what is proved
            now.
    """

    holds: bool
    bound: float
    stated: float
    problems: tuple[str, ...]
    open: tuple[str, ...] = ()
    weaker: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.holds:
            rest = f" (not compared: {'; '.join(self.open)})" if self.open else ""
            more = f" (more is true: {'; '.join(self.weaker)})" if self.weaker else ""
            return f"holds: proved again, {self.bound:.6g} ≤ {self.stated:.6g}{more}{rest}"
        return f"does not hold: {'; '.join(self.problems)}"


def recheck(
    kept: str | Path,
    dense: nn.Module,
    sparse: nn.Module,
    *,
    domain: Domain | None = None,
    progress: Progress | None = None,
) -> Recheck:
    """Whether these two networks are those of the record, and whether everything it states is
    proved again.

    Every number and every sentence is compared, and so is anything else in the record. Four things
    cannot be compared and are named in `open`, with what the record says: the largest deviation, if
    its input was not kept; versions other than the current ones; options other than the defaults,
    with which the proof is made again, and what a time limit cut short; the name of a file with
    boxes that were passed as `domain`.

    Args:
        kept: the text that `Certificate.to_json` wrote; for a file from `Certificate.save`, its
            Path.
        dense, sparse: the two networks, in eval mode.
        domain: the boxes, if the record holds only their hash.
        progress: called with a line of text after each step.

    >>> import torch, secateurs as sc
    >>> dense, sparse = nn.Linear(2, 1), nn.Linear(2, 1)
    >>> kept = sc.certify(dense, sparse, around=torch.zeros(1, 2), radius=1.0).to_json()
    >>> recheck(kept, dense, sparse).holds, recheck(kept, dense, dense).holds
    (True, False)
    """
    if not isinstance(kept, str | Path):
        raise ArgumentError(
            f"a {type(kept).__name__} is not a certificate: give the text of Certificate.to_json,"
            " or Path(...) of a file."
        )
    path = kept if isinstance(kept, Path) else None
    stated, misspelt = read_record(kept if isinstance(kept, str) else text_of(kept))
    request, networks, boxes = stated.options, stated.networks, stated.boxes
    methods = check_options(request.methods, request.norm, request.rounding)
    region = boxes_of_record(boxes, path.parent if path else None, domain)
    # Files are read on the CPU.
    weights = (*dense.parameters(), *dense.buffers())
    region = region.to(next((t.device for t in weights), region.lo.device))
    with show_progress(progress, "recheck") as say:
        # With the options of the record, since another effort could prove less than it states.
        problem = read_problem(
            dense,
            sparse,
            region.example,
            output=request.output,
            ending=True,
            unit=0.0 if request.rounding is False else OWN_UNIT,
            effort=request.effort,
            symbols=request.symbols,
            clock=TimeLimit(tell=say),
        )
        bound = math.nan
        weaker: tuple[str, ...] = ()
        hurried: tuple[str, ...] = ()
        states = states_of(dense, sparse)
        problems = [
            *other_networks(stated, networks, problem, states),
            *wrong_boxes(boxes, region),
        ]
        if not problems:
            # Searching again would prove nothing, since the point that was found is in the record.
            found = problem.differences((region.lo + region.hi) / 2)
            proof = prove(
                problem,
                region,
                methods=methods,
                norm=request.norm,
                rounding=request.rounding,
                spare=bool(request.spare),
            )
            split = claim = None
            if request.target is not None:
                plan = _plan(request, region, problem)
                split = split_for_target(
                    proof, found, target=request.target, methods=methods, plan=plan
                )
            if request.claim is not None:
                asked = CertifySettings(claim=request.claim, margin=request.margin or 0.0)
                plan = _plan(request, region, problem)
                claim = compare_classes(proof, margin=asked.margin, methods=methods, plan=plan)
            now = Certificate.of(proof, found, split=split, claim=claim)
            bound, again = now.bound, now.record()
            weaker, hurried = weaker_claims(stated, again), cut_short(stated, again, request)
            problems = [
                *misspelt,
                *wrong_bounds(stated, again),
                *wrong_words(stated, again, request),
                *wrong_facts(stated, boxes, now),
                *wrong_claim(stated.claim, now),
            ]
    return Recheck(
        holds=not problems,
        bound=bound,
        stated=stated.bound,
        problems=tuple(problems),
        open=_open_points(stated, request, boxes, file=path is not None and domain is None)
        + hurried,
        weaker=weaker,
    )


def _plan(request: Request, domain: Domain, problem: NetworkPair) -> list[Parts]:
    """The parts into which the boxes were split."""
    parts = request.parts or ()
    if len(parts) != len(domain):
        raise ArgumentError(
            f"this is not a certificate: it lists the parts of {len(parts)} boxes, not "
            f"{len(domain)}."
        )
    most = cuttable(problem, domain.lo[0].numel())
    return [read_parts(text, most) for text in parts]


def _open_points(
    stated: CertificateRecord, request: Request, boxes: BoxesRecord, *, file: bool
) -> tuple[str, ...]:
    """Statements that nothing available can confirm, with what the record says."""
    found = []
    if stated.worst_input is None:
        found.append(
            f"the largest deviation found ({stated.lower_bound:.6g}), whose input was not kept"
        )
    if stated.versions != Versions():
        listed = ", ".join(f"{name} {text}" for name, text in as_json(stated.versions).items())
        found.append(f"what it was proved with: {listed}")
    usual = CertifySettings()
    asked = [
        f"{name}={value}"
        for name in ("effort", "symbols", "seconds", "output", "target", "claim", "margin")
        if (value := getattr(request, name)) not in (None, getattr(usual, name))
    ]
    if asked:
        found.append(f"what was asked for: {', '.join(asked)}")
    if boxes.file is not None and not file:
        found.append(f"the name of the file of its boxes, {boxes.file!r}")
    return tuple(found)
