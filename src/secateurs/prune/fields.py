"""The fields of a recipe, checked when it is made; how they share the counts among rounds; and the
plan that shows the outcome."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypeAlias

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from secateurs.errors import (
    ArgumentError,
    SecateursError,
    UnknownNameError,
    problems_of,
    refuse,
)
from secateurs.masks.budget import Amount
from secateurs.masks.patterns import Pattern
from secateurs.masks.question import ScopeLike, Selection, SelectionFields
from secateurs.parameters import Where
from secateurs.printing import Printed
from secateurs.registry import Registry, unknown
from secateurs.scores import SCORES, Convention, Rule

# When how much is cut: the entries kept after each round, as pure functions.

Curve: TypeAlias = Callable[[float, float, float], float]
"""`(start, end, fraction) -> entries kept` after a fraction of the way; falls from `start` at 0 to
`end` at 1.
"""

SCHEDULES: Registry[Curve] = Registry("schedule")
"""Curves by name. A new one: `@SCHEDULES.register("name")` on a function of start, end and
fraction.
"""


@SCHEDULES.register("one-shot")
def one_shot(start: float, end: float, fraction: float) -> float:
    """Everything at once: `end` in the first round."""
    return end if fraction > 0 else start


@SCHEDULES.register("exponential")
def exponential(start: float, end: float, fraction: float) -> float:
    """start · (end/start)^fraction: every round keeps the same share of what is left.

    From a dense model, the density after round k of R is s^(k/R), as SynFlow prunes (Tanaka et al.
    2020).
    """
    # 0/0 and 0^0 are avoided: an empty parameter starts at 0, and fraction 0 is the
    # start itself.
    return start * (end / start) ** fraction if start and fraction else start


@SCHEDULES.register("linear")
def linear(start: float, end: float, fraction: float) -> float:
    """start + (end − start) · fraction: every round cuts the same number."""
    return start + (end - start) * fraction


@SCHEDULES.register("cubic")
def cubic(start: float, end: float, fraction: float) -> float:
    """end + (start − end) · (1 − fraction)³: much early, little late, as gradual magnitude pruning
    does it.

    (Zhu & Gupta 2017, equation 1.)
    """
    return end + (start - end) * (1 - fraction) ** 3


def counts(schedule: str, *, start: int, end: int, rounds: int) -> list[int]:
    """Entries kept after each round: whole numbers that never grow, the last one exactly `end`.

    >>> counts("exponential", start=1000, end=10, rounds=4)
    [316, 100, 32, 10]
    >>> counts("cubic", start=1000, end=0, rounds=4)
    [422, 125, 16, 0]
    """
    if rounds < 1:
        raise ArgumentError(f"rounds={rounds!r}: pruning takes at least one round.")
    return counts_at(schedule, [k / rounds for k in range(1, rounds + 1)], start=start, end=end)


def counts_at(schedule: str, fractions: Sequence[float], *, start: int, end: int) -> list[int]:
    """Entries kept at increasing fractions of the way, each rounded to a whole number; exactly
    `end` at 1.
    """
    if not 0 <= end <= start:
        raise ArgumentError(f"cannot go from {start} entries kept to {end}: masks only shrink.")
    curve, kept, last = SCHEDULES[schedule], [], start
    for fraction in fractions:
        # The last count is set, not computed: powers of floats need not end at a whole
        # number.
        wanted = end if fraction >= 1 else round(curve(start, end, fraction))
        # Masks only shrink, so a curve that rises again is held at its lowest.
        last = min(last, max(end, wanted))
        kept.append(last)
    return kept


def counts_by_share(
    *, start: int, end: int, per_round: float, rounds: int | None = None
) -> list[int]:
    """Entries kept after rounds that each cut the share `per_round` of what is left, until exactly
    `end` are.

    The last round cuts less where the others do not lead to `end` (iterative magnitude pruning).
    With `rounds`, exactly so many: for one parameter of a model whose rounds follow from the whole.

    >>> counts_by_share(start=1000, end=500, per_round=0.2)
    [800, 640, 512, 500]
    """
    if not 0 < per_round < 1:
        raise ArgumentError(
            f"per_round={per_round!r}: it is the share of the kept entries cut per round, in"
            " (0, 1)."
        )
    if rounds is None:
        rounds = _rounds_needed(start, end, per_round)
    return [
        *(max(end, round(start * (1 - per_round) ** k)) for k in range(1, rounds)),
        end,
    ]


def _rounds_needed(start: int, end: int, per_round: float) -> int:
    if not 0 < end <= start:
        raise ArgumentError(
            f"no number of rounds of {per_round:.0%} leads from {start} entries kept to {end}."
        )
    needed = math.log(end / start) / math.log(1 - per_round)
    # 0.8⁵ of the entries are five rounds, whatever the logarithms say.
    return max(1, math.ceil(round(needed, 6)))


class RecipeFields(SelectionFields, total=False):
    """The fields of a `Recipe` beside its score, as keywords; see there."""

    macs: float | None
    latency: float | None
    rounds: int
    schedule: str | None
    where: Where
    convention: Convention
    options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fields:
    """What a `Recipe` says. Mappings among the fields are compared, but not hashed."""

    score: str | Rule = "magnitude"
    sparsity: float | None = None
    density: float | None = None
    compression: float | None = None
    macs: float | None = None
    latency: float | None = None
    rounds: int = 1
    schedule: str | None = None
    scope: ScopeLike = field(default="global", hash=False)
    pattern: str | Pattern = "unstructured"
    how: str = "topk"
    where: Where = None
    floor: float = 1
    convention: Convention = "paper"
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __new__(cls, *args: object, **given: object) -> Self:
        """Refuse a field that does not exist, with the nearest names, before dataclass's bare
        TypeError would.
        """
        if args:
            raise ArgumentError(f"a recipe is written with names: Recipe(score={args[0]!r}, ...).")
        known = [entry.name for entry in fields(cls)]
        strange = [
            UnknownNameError(unknown("field of a recipe", name, known))
            for name in given
            if name not in known
        ]
        refuse("this recipe cannot be read", strange)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        # All of them run, so that one attempt tells everything that is wrong.
        selection = self.selection.checks()
        refuse(
            "this recipe cannot be read",
            problems_of(self._check_score, *selection, self._check_rounds),
        )

    @property
    def amount(self) -> Amount:
        """How much is kept."""
        return Amount(
            sparsity=self.sparsity,
            density=self.density,
            compression=self.compression,
            macs=self.macs,
            latency=self.latency,
        )

    @property
    def selection(self) -> Selection:
        """How much is kept, in which shapes, and how it is chosen."""
        return Selection(
            amount=self.amount,
            scope=self.scope,
            pattern=self.pattern,
            how=self.how,
            floor=self.floor,
        )

    def as_dict(self) -> dict[str, Any]:
        """The fields that differ from the defaults, as plain values; what is no plain value is
        described.
        """
        changed = [
            entry for entry in fields(self) if getattr(self, entry.name) not in (entry.default, {})
        ]
        return {entry.name: _plain(getattr(self, entry.name)) for entry in changed}

    def _check_score(self) -> None:
        if not callable(self.score):
            SCORES.check(self.score)
        if self.convention not in ("paper", "reference"):
            raise ArgumentError(f"convention={self.convention!r}; it is 'paper' or 'reference'.")
        if not isinstance(self.options, Mapping):
            raise ArgumentError(
                f"options={self.options!r} is no mapping of option names to values."
            )

    def _check_rounds(self) -> None:
        if isinstance(self.rounds, bool) or not isinstance(self.rounds, int) or self.rounds < 1:
            raise ArgumentError(f"rounds={self.rounds!r} is not a whole number from 1 on.")
        if self.schedule is not None:
            SCHEDULES.check(self.schedule)
        if self.schedule == "one-shot" and self.rounds > 1:
            raise ArgumentError(
                f"schedule='one-shot' cuts everything in the first of {self.rounds} rounds: "
                "leave rounds= out, or choose another schedule."
            )


def _plain(value: object) -> Any:
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if callable(value):
        return getattr(value, "__qualname__", type(value).__name__)
    return str(value)


# What a recipe would do to a model, before it does it.

MISFIT = "the recipe does not fit the model"
"""How an error begins that says why a recipe cannot run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedParameter:
    """One chosen parameter; `kept` is None where only the scores decide how much of the budget it
    gets.

    `verdict`: where nothing would be kept, whether that matters for the model (needs `example=`).
    """

    name: str
    shape: tuple[int, ...]
    total: int
    kept: int | None
    verdict: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Printed):
    """Problems, chosen and skipped parameters, and the entries asked for after each round.

    Attributes:
        problems: Everything that stands in the way; the recipe runs when there is none.
        parameters: What is pruned, in the model's order.
        skipped: What is not pruned, and why.
        rounds: Entries asked for after each round, the last one exactly; empty when a problem
            prevents counting.
        dry_run: Whether the counts per parameter are those of a dry run with the real scores.
    """

    problems: tuple[SecateursError, ...]
    parameters: tuple[PlannedParameter, ...]
    skipped: Mapping[str, str]
    rounds: tuple[int, ...]
    dry_run: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing stands in the way."""
        return not self.problems

    @property
    def total(self) -> int:
        """Entries of all chosen parameters together."""
        return sum(parameter.total for parameter in self.parameters)

    @property
    def kept(self) -> int | None:
        """Entries kept in the end; None when a problem prevents counting."""
        return self.rounds[-1] if self.rounds else None

    def enforce(self) -> None:
        """Raise everything that stands in the way as one error."""
        refuse(MISFIT, self.problems)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "ok": self.ok,
            "problems": [str(problem) for problem in self.problems],
            "total": self.total,
            "kept": self.kept,
            "rounds": list(self.rounds),
            "dry_run": self.dry_run,
            "parameters": {p.name: _row(p) for p in self.parameters},
            "skipped": dict(self.skipped),
        }

    def to_json(self) -> str:
        """The plan as a JSON object."""
        return json.dumps(self.as_dict(), indent=2)

    def __rich__(self) -> Group:
        lines = [f"[bold red]problem:[/] {escape(str(problem))}" for problem in self.problems]
        lost = [p for p in self.parameters if p.kept == 0]
        lines += [
            f"[yellow]nothing is left of {escape(p.name)}[/] {escape(p.verdict)}".rstrip()
            for p in lost
        ]
        lines += [
            f"[dim]skipped {escape(name)}: {reason}[/]" for name, reason in self.skipped.items()
        ]
        return Group(self._table(), *lines)

    def _table(self) -> Table:
        rounds = f" in {len(self.rounds)} rounds" if len(self.rounds) > 1 else ""
        table = Table(
            "parameter",
            "shape",
            title=f"to prune{rounds}" if self.ok else "cannot be pruned",
        )
        for heading in ("total", "kept"):
            table.add_column(heading, justify="right")
        for p in self.parameters:
            table.add_row(
                escape(p.name),
                "×".join(map(str, p.shape)),
                f"{p.total:,}",
                _count(p.kept),
            )
        table.add_section()
        table.add_row("total", "", f"{self.total:,}", _count(self.kept))
        return table


def _row(p: PlannedParameter) -> dict[str, Any]:
    return {
        "shape": list(p.shape),
        "total": p.total,
        "kept": p.kept,
        "verdict": p.verdict,
    }


def _count(kept: int | None) -> str:
    return "by score" if kept is None else f"{kept:,}"
