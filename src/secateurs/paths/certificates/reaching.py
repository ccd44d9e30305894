"""What the methods prove on some boxes, within the time there is, and why others cannot serve."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from secateurs.paths.certificates.domain import Domain
from secateurs.paths.certificates.methods import METHODS, Reach
from secateurs.paths.certificates.problem import Problem
from secateurs.paths.certificates.relaxing import Skip, contains_forms, outdoes_forms


def reaches(
    problem: Problem, domain: Domain, names: Sequence[str]
) -> tuple[dict[str, Reach], dict[str, str]]:
    """What each method proves on these boxes, and why the others cannot serve.

    When the time is up, the methods that have begun keep what they proved so far; the cheap ones
    always finish, so that there is a bound.
    """
    proven: dict[str, Reach] = {}
    skipped: dict[str, str] = {}
    if {"affine", "linear"} <= set(names) and contains_forms(problem, domain):
        skipped["affine"] = (
            "linear contains it here: its forward bounds are these forms"
        )
    spared = {"affine", "linear"} <= set(names) and outdoes_forms(problem)
    # What may be spared comes last: it is computed if the other could not serve.
    for name in sorted(names, key=lambda name: spared and name == "affine"):
        if name in skipped:
            continue
        if spared and name == "affine" and "linear" in proven:
            skipped[name] = _SPARED
            continue
        # Some boxes at a time, so that a method holds 2²¹ cells of the widest value at
        # most.
        parts = domain.split(max(1, min(64, 2**21 // problem.widest)))
        try:
            with torch.no_grad():
                proven[name] = _joined(_timely(problem, name, parts))
        except Skip as reason:
            skipped[name] = str(reason)
    return proven, skipped


def _timely(problem: Problem, name: str, parts: Sequence[Domain]) -> list[Reach]:
    """The method on one part after the other, each with its share of the time, until it is up."""
    found: list[Reach] = []
    # The cheap ones never look at the clock, so that some bound is always there.
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
                    f"no time was left of the {problem.clock.seconds:g} seconds"
                )
            return [*found, *_nothing(problem, name, parts, number)]
        # What an early part leaves over is shared by the later ones.
        own = replace(problem, clock=clock.within(1 / (len(parts) - number)))
        found.append(METHODS[name](own, part))
        problem.clock.report(f"{name}: part {number + 1} of {len(parts)}")
    return found


def _nothing(
    problem: Problem, name: str, parts: Sequence[Domain], number: int
) -> list[Reach]:
    """For the parts that were not reached."""
    text = f"{name}: time was up after {number} of {len(parts)} parts of the boxes"
    return [
        Reach(
            per_output=part.lo.new_full((len(part), problem.outputs), torch.inf),
            remarks=(text,),
        )
        for part in parts[number:]
    ]


_SPARED = (
    "linear makes all its passes here and was the tighter one in every case measured, for a"
    " fraction of the time. Name affine without linear to compute it"
)

_COSTLY = {"affine": 0.3, "linear": 1.0}
"""The methods that watch the time, with the share of what is left that they may spend."""


def _joined(parts: list[Reach]) -> Reach:
    """One reach for all boxes; a NaN (from ∞·0) proves nothing and becomes ∞."""
    per_output = (
        torch.cat([part.per_output for part in parts])
        .detach()
        .nan_to_num(nan=torch.inf, posinf=torch.inf)
    )
    wholes = [part.whole for part in parts if part.whole is not None]
    whole = (
        torch.cat(wholes).nan_to_num(nan=torch.inf, posinf=torch.inf)
        if wholes
        else None
    )
    return Reach(
        per_output=per_output,
        whole=whole,
        remarks=tuple({r: None for part in parts for r in part.remarks}),
    )
