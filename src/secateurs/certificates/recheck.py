"""Proves a kept certificate again, from its text and the two networks alone.

A record is a claim, and anybody can edit a text: so every number and every sentence of it is
compared with what is proved now, never with another line of the same record.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from secateurs.certificates.certificate import Certificate, ratio
from secateurs.certificates.certify import (
    CertifySettings,
    checked_options,
    compare_classes,
    divide,
    look,
    prove,
)
from secateurs.certificates.domain import Domain
from secateurs.certificates.problem import OWN_UNIT, NetworkPair, TimeLimit, read_problem
from secateurs.certificates.record import (
    WHO,
    Stated,
    boxes,
    domain_record,
    networks_of,
    packed,
    read_stated,
    states_of,
    unpacked,
    versions,
)
from secateurs.certificates.splitting import Parts
from secateurs.certificates.statistical import assumptions_at, clopper_pearson
from secateurs.certificates.top_class import TopClass
from secateurs.errors import ArgumentError

# Every claim of a record beside what is proved now; what does not agree, in words.

_SLACK = 1e-9
"""Another machine may sum in another order: so much of a value is no disagreement."""


def other_networks(stated: Stated, problem: NetworkPair, states: Mapping[str, str]) -> list[str]:
    """In what the networks at hand are not those of the record."""
    now = networks_of(problem)
    found = []
    for who in WHO:
        if now[who]["weights"] != stated.networks[who, "weights"]:
            found.append(f"the weights of the {who} network are not those certified")
        elif states[who] != stated.states[who]:
            found.append(f"weights of the {who} network that its graph does not read differ")
        if now[who]["graph"] != stated.networks[who, "graph"]:
            found.append(
                f"the graph of the {who} network is not the one certified (read by torch"
                f" {stated.versions.get('torch')}, now {torch.__version__})"
            )
    if now["dtype"] != stated.dtype:
        found.append(f"the networks are {now['dtype']}, certified was {stated.dtype}")
    return found


def weaker_claims(stated: Stated, now: Certificate) -> tuple[str, ...]:
    """What is proved now is better than what is stated."""
    if len(stated.per_output) != now.per_output.numel():
        return ()
    rows = _bounds(stated, now)
    found = [
        f"{what} is {value:.6g}, stated is {then:.6g}"
        for what, then, value in rows
        if value < then * (1 - _SLACK)
    ]
    kept, then = now.worth.kept or 0, stated.worth.kept or 0
    if then < kept:
        found.append(f"{kept} of {now.worth.boxes} are certified, stated are {then}")
    return tuple(found)


def _bounds(stated: Stated, now: Certificate) -> list[tuple[str, float, float]]:
    """Each bound with what is stated and what is proved now."""
    per_output = now.per_output.flatten().tolist()
    rows = [("the bound", stated.worth.bound, now.bound)]
    rows += [
        (f"the bound of output {i}", then, value)
        for i, (then, value) in enumerate(zip(stated.per_output, per_output, strict=True))
    ]
    rows += [
        (f"the bound by {name}", then, now.bounds.get(name, math.inf))
        for name, then in stated.bounds.items()
    ]
    return rows


def wrong_bounds(stated: Stated, now: Certificate) -> list[str]:
    """Every stated bound is at least the one proved now."""
    stated_outputs, outputs = len(stated.per_output), now.per_output.numel()
    if stated_outputs != outputs:
        return [f"{stated_outputs} outputs are stated, not {outputs}"]
    return [
        f"{what} proved now is {value:.6g}, above {then:.6g}"
        for what, then, value in _bounds(stated, now)
        # `not … <=` catches a NaN that an edited record might hold.
        if not value <= then * (1 + _SLACK)
    ]


def wrong_words(stated: Stated, now: Certificate) -> list[str]:
    """What is told around the bounds is what the numbers say."""
    real = {
        "norm": str(float(now.norm)),
        "domain": now.domain,
        "rounding": now.rounding,
    }
    problems = [
        f"the {name} is {real[name]!r}, not {told!r}"
        for name, told in stated.told.items()
        if told != real[name]
    ]
    told, real_ones = (
        _lasting(stated, stated.assumptions),
        _lasting(stated, now.assumptions),
    )
    problems += [f"the assumption {text!r} is not told" for text in real_ones if text not in told]
    problems += [
        f"the assumption {text!r} is told, and nothing here assumes it"
        for text in told
        if text not in real_ones
    ]
    if len(told) != len(set(told)):
        problems.append("an assumption is told twice")
    if stated.method not in now.bounds:
        problems.append(f"the method {stated.method!r} proves nothing here")
    if stated.verdict != stated.worth.text:
        problems.append(f"the verdict is {stated.worth.text!r}, not {stated.verdict!r}")
    return [*problems, *_methods(stated, now), *_sizes(stated, now)]


def _lasting(stated: Stated, texts: Sequence[str]) -> list[str]:
    """The texts that another proof with more time would tell, too."""
    if stated.seconds is None:
        return list(texts)
    remarks = tuple(f"{name}: " for name in stated.methods)
    return [text for text in texts if not text.startswith(remarks)]


def _methods(stated: Stated, now: Certificate) -> list[str]:
    """Every method asked for proves something or is skipped, for the reason told."""
    bounds, skipped = stated.bounds.keys(), stated.skipped.keys()
    problems = [
        f"the method {name!r} is told as one that proved something and as one that was skipped"
        for name in sorted(bounds & skipped)
    ]
    if stated.methods != now.options["methods"]:
        problems.append("a method is asked for twice")
    asked = now.bounds.keys() | now.skipped.keys()
    problems += [
        f"the method {name!r} was {'not ' if name in bounds | skipped else ''}asked for, and "
        f"{'is told' if name in bounds | skipped else 'nothing is told of it'}"
        for name in sorted(asked ^ (bounds | skipped))
    ]
    # With a limit of time a method may have been skipped for that alone.
    if stated.seconds is None:
        problems += [
            f"the method {name!r} is skipped because {now.skipped.get(name)!r}, not {reason!r}"
            for name, reason in stated.skipped.items()
            if name in asked and reason != now.skipped.get(name)
        ]
    return problems


def _sizes(stated: Stated, now: Certificate) -> list[str]:
    """Range, margin and the count of safe predictions."""
    then, worth = stated.worth, now.worth
    scale = worth.output_range or 1.0
    problems = [
        f"the {name.replace('_', ' ')} is {value}, not {told}"
        for name, told, value in (
            ("output_range", then.output_range, worth.output_range),
            ("smallest_margin", then.smallest_margin, worth.smallest_margin),
        )
        if not _close(told, value, scale)
    ]
    # Fewer safe predictions than proved may be stated, never more.
    if then.boxes != worth.boxes or (then.kept or 0) > (worth.kept or 0):
        problems.append(
            f"certified are {worth.kept} of {worth.boxes}, not {then.kept} of {then.boxes}"
        )
    return problems


def wrong_facts(stated: Stated, now: Certificate) -> list[str]:
    """The deviation found is there, at a point of the domain."""
    lower, region = stated.worth.lower_bound, now.region
    problems = []
    # Whether or not its input was kept: a fact lies below every bound.
    if not lower <= now.bound * (1 + 1e-6):
        problems.append(f"found is {lower:.6g}, above the bound proved now, {now.bound:.6g}")
    if stated.worst_input is None and has_ends(stated.boxes):
        problems.append("the boxes were kept and the worst input was not")
    if not _close(stated.tightness, ratio(stated.worth.bound, lower), 1.0):
        problems.append(
            f"bound / found is {ratio(stated.worth.bound, lower):.6g}, not {stated.tightness:.6g}"
        )
    if region is None or now.problem is None or stated.worst_input is None:
        return problems
    if packed(stated.worst_input) != stated.record["worst_input"]:
        problems.append("the worst input is not spelled as it is written")
    point = stated.worst_input.unsqueeze(0)
    if point.shape[1:] != region.lo.shape[1:] or not bool(region.contains(point)):
        return [*problems, "the worst input lies outside of the boxes"]
    with torch.no_grad():
        gap = now.problem.difference(point)
    there = float(torch.linalg.vector_norm(gap, ord=now.norm))
    # A difference of large outputs cancels: allow for what float64 leaves of it.
    slack = 1e-6 * there + _SLACK * (now.worth.output_range or 1.0)
    # More may be there than a bound below it lets one say.
    if lower > there + slack or lower < min(there, stated.worth.bound) - slack:
        problems.append(f"at the worst input {there:.6g} is found, not {lower:.6g}")
    return problems


def hurried(stated: Stated, now: Certificate) -> tuple[str, ...]:
    """What is told of a proof that time cut short, and not of the one made now."""
    if stated.seconds is None:
        return ()
    lasting = _lasting(stated, stated.assumptions)
    texts = [text for text in stated.assumptions if text not in lasting]
    texts += [
        f"{name} skipped: {reason}"
        for name, reason in stated.skipped.items()
        if reason != now.skipped.get(name)
    ]
    return tuple(f"what {stated.seconds:g} seconds cut short: {text}" for text in texts)


def wrong_boxes(stated: Stated, domain: Domain) -> list[str]:
    """What the record tells of its boxes is what these are."""
    real = domain_record(domain, inline=has_ends(stated.boxes), file=stated.boxes.get("file"))
    return [
        f"{name} of the boxes is {_brief(real.get(name))}, not {_brief(told)}"
        for name, told in stated.boxes.items()
        if name in real
        and json.dumps(told) != json.dumps(real[name])
        # 1 and 1.0 are one number.
        and not (_is_number(told) and _is_number(real[name]) and told == real[name])
    ] + strange_keys(stated.boxes, real, "boxes")


def has_ends(boxes: Mapping[str, Any]) -> bool:
    """Whether the record holds the boxes themselves."""
    return any(name in boxes for name in ("center", "lo", "hi"))


def strange_keys(told: Mapping[str, Any], real: Mapping[str, Any], where: str = "") -> list[str]:
    """What a record holds that no certificate has, and what it lacks."""
    within = f"{where}." if where else ""
    problems = [f"the record also holds {within + name!r}" for name in told if name not in real]
    return problems + [f"the record lacks {within + name!r}" for name in real if name not in told]


def wrong_keys(stated: Stated, now: Certificate) -> list[str]:
    """The record has the fields of a certificate, and no others beside them."""
    told, real = stated.record, json.loads(now.to_json(boxes=False))
    real["states"] = dict.fromkeys(WHO, "")
    problems = strange_keys(told, real)
    for name in ("networks", "options", "versions", "states"):
        problems += strange_keys(told[name], real[name], name)
    for who in WHO:
        problems += strange_keys(told["networks"][who], real["networks"][who], f"networks.{who}")
    if told["certified"] is not None:
        problems += strange_keys(told["certified"], {"kept": 0, "of": 0}, "certified")
    return problems


def wrong_statistics(stated: Stated) -> list[str]:
    """The statistical part agrees with itself; its inputs are not there to ask."""
    told = stated.statistical
    if told is None:
        return []
    problems = []
    limit = math.nan
    if 0 <= told.changed <= told.samples and 0 < told.alpha < 1:
        limit = clopper_pearson(told.changed, told.samples, alpha=told.alpha)
    if not abs(told.change_bound - limit) <= _SLACK:
        problems.append(
            f"{told.changed} changes of {told.samples} bound the rate by {limit:.6g}, not"
            f" {told.change_bound:.6g}"
        )
    if told.norm != stated.norm:
        problems.append(f"the statistical part is in another norm, {told.norm}")
    if told.assumptions != assumptions_at(told.alpha, told.beta):
        problems.append("the assumptions of the statistical part are others")
    return problems


def wrong_claim(stated: Stated, now: Certificate) -> list[str]:
    """What is told of the top classes is proven again, or its counterexample is one."""
    told = stated.record.get("claim")
    if told is None or now.claim is None or now.problem is None or now.region is None:
        return []
    if not isinstance(told, dict):
        raise ArgumentError("this is no certificate: what became of its claim cannot be read.")
    problems = strange_keys(told, {"answer": "", "share": 0, "counterexample": None}, "claim")
    if problems:
        return problems
    answer, share, kept = told["answer"], told["share"], told["counterexample"]
    if not _is_number(share) or not share <= now.claim.share + _SLACK:
        problems.append(f"the claim is proven on {now.claim.share:.6g} of the volume, not {share}")
    if (answer == "refuted") != (kept is not None):
        problems.append(f"the claim is {answer!r}, and a counterexample is {_brief(kept)}")
    if answer == "proven" and now.claim.answer != "proven":
        problems.append("the claim is not proven by the parts that were kept")
    if answer not in ("proven", "refuted", "open"):
        problems.append(f"the claim is {answer!r}")
    if kept is None:
        return problems
    x = unpacked(kept).unsqueeze(0)
    if x.shape[1:] != now.region.lo.shape[1:] or not bool(now.region.contains(x)):
        return [*problems, "the counterexample lies outside of the boxes"]
    with torch.no_grad():
        wrong = TopClass(margin=stated.margin).violation(*(own(x) for own in now.problem.own))
    if not bool(wrong > 0):
        problems.append("at the counterexample both networks answer one class, or f is not sure")
    return problems


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 80 else f"{text[:60]}…"


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _close(one: float | None, two: float | None, scale: float) -> bool:
    if one is None or two is None or math.isinf(one) or math.isinf(two):
        return one == two
    return abs(one - two) <= _SLACK * max(scale, abs(two))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recheck:
    """Whether a kept certificate holds, and what was found.

    Attributes:
        holds: Both networks are those of the record, and all it states is proved again.
        bound: Proved now; NaN where the networks are others.
        stated: In the record.
        problems: What does not agree, in words; empty where it holds.
        open: What the record states and does not hold the means to compare, with what it says.
        weaker: Bounds that it states larger than they are: true, and less than can be said.
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
    progress: Callable[[str], None] | None = None,
) -> Recheck:
    """Whether these two networks are those of the record, and whether all it states is proved
    again.

    Every number and every sentence is compared, and so is what a record holds beside them. Four
    things cannot be and are named in `open`, with what is said there: the statistical part and
    the largest deviation, where their inputs were not kept; versions other than those of now;
    options other than the usual ones, with which the proof is made again, and what a limit of
    time cut short; the name of a file of boxes that were given with `domain`.

    Args:
        kept: what `Certificate.to_json` wrote; for a file that `Certificate.save` wrote, its Path.
        dense, sparse: the two networks, in eval mode.
        domain: the boxes, where the record holds only their hash.
        progress: called with a line of text after each step.

    >>> import torch, secateurs as sc
    >>> dense, sparse = nn.Linear(2, 1), nn.Linear(2, 1)
    >>> kept = sc.certify(dense, sparse, around=torch.zeros(1, 2), radius=1.0).to_json()
    >>> recheck(kept, dense, sparse).holds, recheck(kept, dense, dense).holds
    (True, False)
    """
    if not isinstance(kept, str | Path):
        raise ArgumentError(
            f"a {type(kept).__name__} is no certificate: give the text of Certificate.to_json, or"
            " Path(...) of a file."
        )
    path = kept if isinstance(kept, Path) else None
    stated = read_stated(kept if isinstance(kept, str) else _text(kept))
    methods = checked_options(stated.methods, stated.norm, stated.rounding)
    region = boxes(stated, path.parent if path else None, domain)
    # With the options of the record: another effort could prove less than it states.
    problem = read_problem(
        dense,
        sparse,
        region.example,
        output=stated.output,
        unit=0.0 if stated.rounding is False else OWN_UNIT,
        effort=stated.effort,
        symbols=stated.symbols,
        clock=TimeLimit(tell=progress),
    )
    bound = math.nan
    weaker: tuple[str, ...] = ()
    cut_short: tuple[str, ...] = ()
    problems = [
        *other_networks(stated, problem, states_of(dense, sparse)),
        *wrong_boxes(stated, region),
    ]
    if not problems:
        # Searching again would prove nothing: the point that was found is in the record.
        now = prove(
            problem,
            region,
            look(problem, region, restarts=0, steps=0),
            methods=methods,
            norm=stated.norm,
            rounding=stated.rounding,
        )
        if stated.target is not None:
            now = divide(now, target=stated.target, methods=methods, plan=_plan(stated, region))
        if stated.claim is not None:
            asked = CertifySettings(claim=stated.claim, margin=stated.margin)  # type: ignore[arg-type]
            plan = _plan(stated, region)
            now = compare_classes(now, margin=asked.margin, methods=methods, plan=plan)
        bound = now.bound
        weaker, cut_short = weaker_claims(stated, now), hurried(stated, now)
        problems = [
            *wrong_keys(stated, now),
            *wrong_bounds(stated, now),
            *wrong_words(stated, now),
            *wrong_facts(stated, now),
            *wrong_statistics(stated),
            *wrong_claim(stated, now),
        ]
    return Recheck(
        holds=not problems,
        bound=bound,
        stated=stated.worth.bound,
        problems=tuple(problems),
        open=_open(stated, file=path is not None and domain is None) + cut_short,
        weaker=weaker,
    )


def _plan(stated: Stated, domain: Domain) -> list[Parts]:
    """The parts into which the boxes were split."""
    if len(stated.parts) != len(domain):
        raise ArgumentError(
            f"this is no certificate: parts of {len(stated.parts)} boxes are stated, not"
            f" {len(domain)}."
        )
    return [Parts.unpacked(text, domain.lo[0].numel()) for text in stated.parts]


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path} cannot be read: {error}.") from None


def _open(stated: Stated, *, file: bool) -> tuple[str, ...]:
    """What nothing at hand can show, with what the record says of it."""
    found = []
    if stated.worst_input is None:
        found.append(
            f"the largest deviation found ({stated.worth.lower_bound:.6g}), whose input was not"
            " kept"
        )
    if stated.statistical is not None:
        seen = stated.record["statistical"]
        # Not the assumptions: these are compared.
        told = ", ".join(f"{k}={v}" for k, v in seen.items() if k != "assumptions")
        found.append(f"the statistical part, whose inputs were not kept: {told}")
    if stated.versions != versions():
        told = ", ".join(f"{name} {text}" for name, text in stated.versions.items())
        found.append(f"what it was proved with: {told}")
    usual = CertifySettings()
    asked = {
        name: value
        for name in ("effort", "symbols", "seconds", "output", "target", "claim", "margin")
        if (value := getattr(stated, name)) != getattr(usual, name)
    }
    if asked:
        told = ", ".join(f"{name}={value}" for name, value in asked.items())
        found.append(f"what was asked for: {told}")
    if stated.boxes.get("file") is not None and not file:
        found.append(f"the name of the file of its boxes, {stated.boxes['file']!r}")
    return tuple(found)
