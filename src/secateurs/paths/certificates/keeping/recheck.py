"""Proves a kept certificate again, from its text and the two networks alone.

A record is a claim, and anybody can edit a text: so every number and every sentence of it is
compared with what is proved now, never with another line of the same record.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from secateurs.errors import ArgumentError
from secateurs.paths.certificates.certify import checked_options
from secateurs.paths.certificates.domain import Domain
from secateurs.paths.certificates.keeping.comparing import (
    hurried,
    other_networks,
    weaker_claims,
    wrong_bounds,
    wrong_boxes,
    wrong_facts,
    wrong_keys,
    wrong_statistics,
    wrong_words,
)
from secateurs.paths.certificates.keeping.record import states_of, versions
from secateurs.paths.certificates.keeping.stated import Stated, boxes, read_stated
from secateurs.paths.certificates.problem import OWN_UNIT, read_problem
from secateurs.paths.certificates.problems.clock import Clock
from secateurs.paths.certificates.prove import look, prove
from secateurs.paths.certificates.settings import Settings


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
        clock=Clock(tell=progress),
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
        bound = now.bound
        weaker, cut_short = weaker_claims(stated, now), hurried(stated, now)
        problems = [
            *wrong_keys(stated, now),
            *wrong_bounds(stated, now),
            *wrong_words(stated, now),
            *wrong_facts(stated, now),
            *wrong_statistics(stated),
        ]
    return Recheck(
        holds=not problems,
        bound=bound,
        stated=stated.worth.bound,
        problems=tuple(problems),
        open=_open(stated, file=path is not None and domain is None) + cut_short,
        weaker=weaker,
    )


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
    usual = Settings()
    asked = {
        name: value
        for name in ("effort", "symbols", "seconds", "output")
        if (value := getattr(stated, name)) != getattr(usual, name)
    }
    if asked:
        told = ", ".join(f"{name}={value}" for name, value in asked.items())
        found.append(f"what was asked for: {told}")
    if stated.boxes.get("file") is not None and not file:
        found.append(f"the name of the file of its boxes, {stated.boxes['file']!r}")
    return tuple(found)
