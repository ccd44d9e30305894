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
    other_networks,
    wrong_bounds,
    wrong_facts,
    wrong_words,
)
from secateurs.paths.certificates.keeping.stated import Stated, boxes, read_stated
from secateurs.paths.certificates.problem import OWN_UNIT, read_problem
from secateurs.paths.certificates.problems.clock import Clock
from secateurs.paths.certificates.prove import look, prove


@dataclass(frozen=True, slots=True, kw_only=True)
class Recheck:
    """Whether a kept certificate holds, and what was found.

    Attributes:
        holds: Both networks are those of the record, and all it states is proved again.
        bound: Proved now; NaN where the networks are others.
        stated: In the record.
        problems: What does not agree, in words; empty where it holds.
        open: What the record states and does not hold the means to compare.
    """

    holds: bool
    bound: float
    stated: float
    problems: tuple[str, ...]
    open: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.holds:
            rest = f" (not compared: {'; '.join(self.open)})" if self.open else ""
            return f"holds: proved again, {self.bound:.6g} ≤ {self.stated:.6g}{rest}"
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

    Compared are: weights, graphs, boxes, bounds (all of them, and per output), the largest
    deviation found (evaluated again where it was found), range, margin, the count of safe
    predictions, the verdict and the assumptions. What speaks of inputs that are not in the record,
    such as the statistical part, is named in `open`.

    Args:
        kept: what `Certificate.to_json` wrote, or the path of what `Certificate.save` wrote.
        dense, sparse: the two networks, in eval mode.
        domain: the boxes, where the record holds only their hash.
        progress: called with a line of text after each step.

    >>> import torch, secateurs as sc
    >>> dense, sparse = nn.Linear(2, 1), nn.Linear(2, 1)
    >>> kept = sc.certify(dense, sparse, around=torch.zeros(1, 2), radius=1.0).to_json()
    >>> recheck(kept, dense, sparse).holds, recheck(kept, dense, dense).holds
    (True, False)
    """
    path = kept if isinstance(kept, Path) else None
    stated = read_stated(kept if isinstance(kept, str) else _text(kept))
    methods = checked_options(stated.methods, stated.norm, stated.rounding)
    region = boxes(stated, path.parent if path else None, domain)
    # With the options of the record: another effort could prove less than it states.
    problem = read_problem(
        dense,
        sparse,
        region.example,
        unit=0.0 if stated.rounding is False else OWN_UNIT,
        effort=stated.effort,
        symbols=stated.symbols,
        clock=Clock(tell=progress),
    )
    bound, problems = math.nan, other_networks(stated, problem)
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
        problems = [
            *wrong_bounds(stated, now),
            *wrong_words(stated, now),
            *wrong_facts(stated, now),
        ]
    return Recheck(
        holds=not problems,
        bound=bound,
        stated=stated.worth.bound,
        problems=tuple(problems),
        open=_open(stated),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path} cannot be read: {error}.") from None


def _open(stated: Stated) -> tuple[str, ...]:
    """Claims about inputs that are not in the record."""
    found = []
    if stated.worst_input is None:
        found.append("the largest deviation found, whose input was not kept")
    if stated.statistical:
        found.append("the statistical part, whose inputs were not kept")
    return tuple(found)
