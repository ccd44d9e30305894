"""A question of `select` read and checked at one place: everything wrong in one error."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from torch import Tensor

from secateurs.masks.amount import density_of
from secateurs.masks.drawing.draw import SELECTIONS
from secateurs.masks.pattern import Pattern, Unstructured, pattern_of
from secateurs.masks.ranking.arguments import (
    check_companions,
    check_rows,
    check_scores,
    check_shapes,
)
from secateurs.masks.ranking.demand import demand_of
from secateurs.masks.ranking.places import row_ranks
from secateurs.masks.ranking.question import Choice, Question
from secateurs.masks.ranking.shares import counts_of
from secateurs.masks.ranking.units import units_of


def read(question: Question) -> Choice:
    """Check everything and say how many entries each parameter keeps."""
    shape, fraction = pattern_of(question.pattern), _density(question)
    random = SELECTIONS[question.how].draw is not None
    _check(question, shape, random)
    # Magnitudes of plain top-k are taken while ranking, so that no tensor of scores is
    # made.
    plain = isinstance(shape, Unstructured) and not random and question.scope != "row"
    while_ranking = question.absolute and plain
    scores = question.scores if while_ranking else _ranked(question)
    within = question.within or {}
    units = units_of(scores, shape, within, absolute=while_ranking)
    demand = demand_of(scores, units, fraction, question, shape)
    demand = replace(demand, absolute=while_ranking)
    counts = counts_of(question.scope, demand, fraction)
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


def _density(question: Question) -> Fraction | None:
    return density_of(
        sparsity=question.sparsity,
        density=question.density,
        compression=question.compression,
    )


def _check(question: Question, shape: Pattern, random: bool) -> None:
    """Refuse scores, shapes and companions that do not fit, before anything is computed."""
    scores = question.scores
    check_scores(scores, random and not question.absolute, finite=question.finite)
    check_shapes(scores, shape)
    check_companions("within", scores, question.within, bool_only=True)
    check_companions("weights", scores, question.weights, bool_only=False)
    if question.scope == "row":
        check_rows(shape, random)


def _ranked(question: Question) -> Mapping[str, Tensor]:
    """The scores as they are compared: magnitudes where asked, places in the row by scope "row"."""
    scores = question.scores
    if question.absolute:
        scores = {name: score.detach().abs() for name, score in scores.items()}
    if question.scope == "row":
        within = question.within or {}
        scores = {n: row_ranks(score, within.get(n)) for n, score in scores.items()}
    return scores


def _floor_within(
    floor: Mapping[str, int], counts: Mapping[str, int] | None
) -> dict[str, int]:
    """A density of 0 in a mapping asks for nothing there, so no floor stands against it."""
    if counts is None:
        return dict(floor)
    return {name: min(least, counts[name]) for name, least in floor.items()}
