"""Every claim of a record beside what is proved now; what does not agree, in words."""

import math

import torch

from secateurs.paths.certificates.certificate import Certificate, ratio
from secateurs.paths.certificates.keeping.record import networks_of
from secateurs.paths.certificates.keeping.stated import WHO, Stated
from secateurs.paths.certificates.problem import Problem

_SLACK = 1e-9
"""Another machine may sum in another order: so much of a value is no disagreement."""


def other_networks(stated: Stated, problem: Problem) -> list[str]:
    """In what the networks at hand are not those of the record."""
    now = networks_of(problem)
    found = []
    for who in WHO:
        if now[who]["weights"] != stated.networks[who, "weights"]:
            found.append(f"the weights of the {who} network are not those certified")
        if now[who]["graph"] != stated.networks[who, "graph"]:
            found.append(
                f"the graph of the {who} network is not the one certified (read by torch"
                f" {stated.torch}, now {torch.__version__})"
            )
    # Real numbers do not depend on the precision; an evaluation does.
    if stated.rounding is True and now["dtype"] != stated.dtype:
        found.append(f"the networks are {now['dtype']}, certified was {stated.dtype}")
    return found


def wrong_bounds(stated: Stated, now: Certificate) -> list[str]:
    """Every stated bound is at least the one proved now."""
    per_output = now.per_output.flatten().tolist()
    if len(stated.per_output) != len(per_output):
        return [f"{len(stated.per_output)} outputs are stated, not {len(per_output)}"]
    rows = [("the bound", stated.worth.bound, now.bound)]
    rows += [
        (f"the bound of output {i}", then, value)
        for i, (then, value) in enumerate(
            zip(stated.per_output, per_output, strict=True)
        )
    ]
    rows += [
        (f"the bound by {name}", then, now.bounds.get(name, math.inf))
        for name, then in stated.bounds.items()
    ]
    return [
        f"{what} proved now is {value:.6g}, above {then:.6g}"
        for what, then, value in rows
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
    # More assumptions than needed do no harm; one that is left out does.
    silent = [text for text in now.assumptions if text not in stated.assumptions]
    problems += [f"the assumption {text!r} is not told" for text in silent]
    if stated.method not in now.bounds:
        problems.append(f"the method {stated.method!r} proves nothing here")
    if stated.verdict != stated.worth.text:
        problems.append(
            f"the verdict is {stated.worth.text!r}, not {stated.verdict!r}"
        )
    return [*problems, *_sizes(stated, now)]


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
    if not _close(stated.tightness, ratio(stated.worth.bound, lower), 1.0):
        problems.append(
            f"bound / found is {ratio(stated.worth.bound, lower):.6g}, not {stated.tightness:.6g}"
        )
    if region is None or now.problem is None or stated.worst_input is None:
        return problems
    point = stated.worst_input.unsqueeze(0)
    if point.shape[1:] != region.lo.shape[1:] or not bool(region.contains(point)):
        return [*problems, "the worst input lies outside of the boxes"]
    with torch.no_grad():
        gap = now.problem.difference(point)
    there = float(torch.linalg.vector_norm(gap, ord=now.norm))
    # A difference of large outputs cancels: allow for what float64 leaves of it.
    if not lower <= there * (1 + 1e-6) + _SLACK * (now.worth.output_range or 1.0):
        problems.append(f"at the worst input {there:.6g} is found, not {lower:.6g}")
    return problems


def _close(one: float | None, two: float | None, scale: float) -> bool:
    if one is None or two is None or math.isinf(one) or math.isinf(two):
        return one == two
    return abs(one - two) <= _SLACK * max(scale, abs(two))
