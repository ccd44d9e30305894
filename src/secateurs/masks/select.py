"""From scores to masks: how much, where, in which shapes, chosen how."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.masks.budget import Amount
from secateurs.masks.draw import SELECTIONS, Rows
from secateurs.masks.patterns import Grouped, Pattern, Unstructured, pattern_of
from secateurs.masks.question import (
    Choice,
    Question,
    ScopeLike,
    Selection,
    check_companions,
    check_rows,
    check_scores,
    check_shapes,
    counts_of,
    demand_of,
)
from secateurs.masks.topk import row_ranks
from secateurs.masks.units import units_of

# The hard threshold: the best units of a checked question, floors respected.


def best(choice: Choice) -> dict[str, Tensor]:
    """The unit masks of the largest scores: the hard threshold."""
    if choice.counts is None:
        return _with_floors(choice, list(choice.scores), choice.keep)
    chosen: dict[str, Tensor] = {}
    for name in choice.scores:
        chosen |= _with_floors(choice, [name], choice.counts[name])
    return chosen


def _with_floors(choice: Choice, names: Sequence[str], keep: int) -> dict[str, Tensor]:
    """Let the parameters compete; those below their floor get exactly that and leave, the others
    compete again.
    """
    units, floor = choice.units, choice.floor
    if not isinstance(choice.pattern, Grouped) and keep < (
        least := sum(floor[name] for name in names)
    ):
        raise ArgumentError(
            f"{keep} entries cannot keep the floor of {least} in {len(names)} parameters. "
            "Ask for more, or allow parameters to vanish with floor=0."
        )
    fixed = {name: units.at_least(name, floor[name]) for name in _settled(choice, names)}
    # Every turn settles at least one parameter, so there are at most as many turns as
    # parameters.
    while True:
        free = [name for name in names if name not in fixed]
        spent = sum(units.kept(name, mask) for name, mask in fixed.items())
        chosen = units.choose(free, max(0, keep - spent)) if free else {}
        short = [name for name in free if units.kept(name, chosen[name]) < floor[name]]
        if not short:
            return {name: fixed.get(name, chosen.get(name, torch.empty(0))) for name in names}
        fixed |= {name: units.at_least(name, floor[name]) for name in short}


def _settled(choice: Choice, names: Sequence[str]) -> list[str]:
    """Parameters that may keep no more than their floor, so must keep all that: they would lose and
    cost a new round of competition. (Among groups they take part, because the nearest reachable
    number depends on who does.)
    """
    if isinstance(choice.pattern, Grouped):
        return []
    return [name for name in names if choice.capacity[name] <= choice.floor[name]]


# A question of `select` read and checked at one place: everything wrong in one error.


def read(question: Question) -> Choice:
    """Check everything and say how many entries each parameter keeps."""
    selection = question.selection
    selection.check()
    shape, fraction = pattern_of(selection.pattern), selection.amount.fraction
    random = SELECTIONS[selection.how].draw is not None
    _check(question, shape, random)
    # Magnitudes of plain top-k are taken while ranking, so that no tensor of scores is
    # made.
    plain = isinstance(shape, Unstructured) and not random and selection.scope != "row"
    while_ranking = question.absolute and plain
    scores = question.scores if while_ranking else _ranked(question)
    within = question.within or {}
    units = units_of(scores, shape, within, absolute=while_ranking)
    demand = demand_of(scores, units, fraction, question)
    demand = replace(demand, absolute=while_ranking)
    counts = counts_of(selection.scope, demand)
    return Choice(
        scores=scores,
        within=within,
        pattern=shape,
        units=units,
        keep=demand.keep,
        counts=counts,
        capacity=demand.capacity,
        floor=_floor_within(demand.floor, counts),
    )


def _check(question: Question, shape: Pattern, random: bool) -> None:
    """Refuse scores, shapes and companions that do not fit, before anything is computed."""
    scores = question.scores
    check_scores(scores, random and not question.absolute, finite=question.finite)
    check_shapes(scores, shape)
    check_companions("within", scores, question.within, bool_only=True)
    check_companions("weights", scores, question.weights, bool_only=False)
    if question.selection.scope == "row":
        check_rows(shape, random)


def _ranked(question: Question) -> Mapping[str, Tensor]:
    """The scores as they are compared: magnitudes where asked, places in the row by scope "row"."""
    scores = question.scores
    if question.absolute:
        scores = {name: score.detach().abs() for name, score in scores.items()}
    if question.selection.scope == "row":
        within = question.within or {}
        scores = {n: row_ranks(score, within.get(n)) for n, score in scores.items()}
    return scores


def _floor_within(floor: Mapping[str, int], counts: Mapping[str, int] | None) -> dict[str, int]:
    """A density of 0 in a mapping asks for nothing there, so no floor stands against it."""
    if counts is None:
        return dict(floor)
    return {name: min(least, counts[name]) for name, least in floor.items()}


def select(
    scores: Mapping[str, Tensor],
    *,
    sparsity: float | None = None,
    density: float | None = None,
    compression: float | None = None,
    scope: ScopeLike = "global",
    pattern: str | Pattern = "unstructured",
    how: str = "topk",
    floor: float = 1,
    within: Mapping[str, Tensor] | None = None,
    weights: Mapping[str, Tensor] | None = None,
    generator: torch.Generator | None = None,
    absolute: bool = False,
) -> dict[str, Tensor]:
    """Masks (True = kept) for the scores (large = keep).

    Args:
        scores: one finite tensor per parameter name, of any layout and floating dtype.
        sparsity, density, compression: exactly one of them, of all entries together. Kept are
            density · total entries, rounded to the nearest whole number, halves to the even one.
            Optional for N:M.
        scope: "global", "layer", "row" (each output row), "uniform", "erk", any registered scope,
            or a density per name or glob.
        pattern: "unstructured", "2:4" or any N:M, "4x4" or any block, "kernel", "filter",
            "channel", or a value such as `NM(2, 4)`. Groups are taken whole, so the kept entries
            are the nearest reachable number (of two equally near the smaller).
        how: "topk", or a random draw of as many units per parameter as topk keeps there.
        floor: entries (or, below 1, a density) that every parameter keeps at least; 0 allows layers
            to vanish.
        within: earlier masks; only entries they keep may be kept. The total is still that of all
            entries.
        weights: the parameters, for scopes that look at them.
        generator: where random draws come from.
        absolute: rank |scores|. With the weights as scores this is magnitude pruning without a
            tensor of scores (unstructured topk; the other ways make the magnitudes first).

    Equal scores never change the count: of equal ones the earlier are kept, in the order of the
    mapping and then of row-major indices.

    >>> select({"weight": torch.tensor([[0.3, 0.1], [0.2, 0.4]])}, sparsity=0.5)
    {'weight': tensor([[ True, False], [False,  True]])}
    """
    question = Question(
        scores=scores,
        selection=Selection(
            amount=Amount(sparsity=sparsity, density=density, compression=compression),
            scope=scope,
            pattern=pattern,
            how=how,
            floor=floor,
        ),
        within=within,
        weights=weights,
        absolute=absolute,
    )
    return answer(question, generator=generator)


def answer(question: Question, *, generator: torch.Generator | None = None) -> dict[str, Tensor]:
    """What `select` answers, for a question at hand."""
    drawn = draw(read(question), question.selection.how, generator=generator)
    return {name: part.mask for name, part in drawn}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What was chosen of one parameter; `biased` says whether entries of positive score had no
    chance.
    """

    mask: Tensor
    weights: Tensor | None = None
    biased: bool = False


def draw(
    choice: Choice,
    how: str,
    *,
    weighted: bool = False,
    generator: torch.Generator | None = None,
) -> Iterator[tuple[str, Part]]:
    """In each parameter, each run of N:M on its own, draw as many units as the hard threshold keeps
    there.

    Steps 1 to 3 of the randomised mask (Bar & Giryes 2023): threshold, counts, draw. One parameter
    at a time.
    """
    rule, units = SELECTIONS[how].draw, choice.units
    for name, chosen in best(choice).items():
        if rule is None or not chosen.numel():
            yield name, Part(mask=units.mask(name, chosen))
            continue
        scores, allowed = units.rows(name)
        rows = Rows(scores, units.counts(name, chosen), allowed, weighted, generator)
        drawn = rule(rows)
        weights = None if drawn.weights is None else units.entries(name, drawn.weights)
        mask = units.entries(name, drawn.mask)
        biased = weighted and _biased(choice, name, rows)
        yield name, Part(mask=mask, weights=weights, biased=biased)


def _biased(choice: Choice, name: str, rows: Rows) -> bool:
    """Whether an entry of positive score had no chance: no count in its row, or not allowed."""
    idle = (rows.scores > 0).any(1) & (rows.counts == 0)
    forbidden = name in choice.within and bool(
        ((choice.scores[name] > 0) & ~choice.within[name]).any()
    )
    return forbidden or bool(idle.any())
