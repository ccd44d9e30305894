"""From scores to masks: how much, where, in which shapes, chosen how."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, Unpack

import torch
from torch import Tensor

from secateurs.base.registry import refuse_unknown, unknown
from secateurs.errors import (
    ArgumentError,
    EmptySelectionError,
    MaskError,
    PatternError,
    ScoreError,
)
from secateurs.masks.apply import mask_misfits
from secateurs.masks.budget import SCOPES as SCOPES
from secateurs.masks.budget import (
    Demand,
    Keep,
    Selection,
    SelectionFields,
    counts_of,
    demand_of,
)
from secateurs.masks.draw import SELECTIONS, ScoreRows
from secateurs.masks.patterns import Pattern, Unstructured, pattern_of
from secateurs.masks.pieces import sound, trouble
from secateurs.masks.units import Chosen, RowUnits, TensorUnits, Units, units_of

AnyUnits = TypeVar("AnyUnits", bound=Units[Any], covariant=True)
SomeUnits = TypeVar("SomeUnits", bound=Units[Any])


def select(
    scores: Mapping[str, Tensor],
    *,
    within: Mapping[str, Tensor] | None = None,
    weights: Mapping[str, Tensor] | None = None,
    generator: torch.Generator | None = None,
    absolute: bool = False,
    **selection: Unpack[SelectionFields],
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
        floor: entries (or, below 1, a density) that every parameter keeps at least, 1 by default;
            0 allows layers to vanish.
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
    refuse_unknown(select, selection, SelectionFields.__annotations__)
    choice = check_selection(
        Selection(**selection), scores, within=within, weights=weights, absolute=absolute
    )
    return choose_masks(choice, generator)


def choose_masks(
    choice: "CheckedSelection[TensorUnits]", generator: torch.Generator | None
) -> dict[str, Tensor]:
    """The masks of a checked choice."""
    return {name: part.mask for name, part in draw(choice, generator=generator)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSelection(Generic[AnyUnits]):
    """A selection checked against its scores: the units to choose among, how many entries are kept
    in all, and of each parameter (None where all compete).
    """

    units: AnyUnits
    demand: Demand
    counts: Mapping[str, int] | None
    how: str = "topk"


def check_selection(
    selection: Selection,
    scores: Mapping[str, Tensor],
    *,
    within: Mapping[str, Tensor] | None = None,
    weights: Mapping[str, Tensor] | None = None,
    keep: Keep | None = None,
    absolute: bool = False,
    finite: bool = False,
) -> CheckedSelection[TensorUnits]:
    """Check everything before anything is computed, and say how many entries each parameter keeps.

    `keep` takes the place of the selection's amount: of all parameters together, or of each, no
    more than there are. `finite` states that every score is known to be finite: for large tensors,
    another check would cost as much as the choice itself.
    """
    pattern, random = pattern_of(selection.pattern), SELECTIONS[selection.how].draw is not None
    by_rows = selection.scope == "row"
    check_scores(scores, random and not absolute, finite=finite)
    shapes = {name: tuple(score.shape) for name, score in scores.items()}
    check_shapes(pattern, shapes)
    companions = {
        "within": mask_misfits(within or {}, scores, "score"),
        "weights": _weight_misfits(weights or {}, scores),
    }
    for what, problems in companions.items():
        if problems:
            raise MaskError(f"{what}= does not match the scores: {'; '.join(problems)}.")
    plain = isinstance(pattern, Unstructured) and not random
    if by_rows and not plain:
        raise ArgumentError(
            "scope='row' takes the largest entries of each row: it works only with "
            "pattern='unstructured' and how='topk'."
        )
    # Magnitudes of plain top-k are taken while ranking, so that no tensor of scores is made.
    while_ranking = absolute and plain and not by_rows
    if absolute and not while_ranking:
        scores = {name: score.detach().abs() for name, score in scores.items()}
    # Masks from a file lie on the CPU.
    within = {name: mask.to(scores[name].device) for name, mask in (within or {}).items()}
    units = (
        RowUnits(scores, pattern, within)
        if by_rows
        else units_of(scores, pattern, within, absolute=while_ranking)
    )
    return choice_of(
        selection, shapes, units, keep=keep, scores=scores, weights=weights, absolute=while_ranking
    )


def choice_of(
    selection: Selection,
    shapes: Mapping[str, tuple[int, ...]],
    units: SomeUnits,
    *,
    keep: Keep | None = None,
    scores: Mapping[str, Tensor],
    weights: Mapping[str, Tensor] | None = None,
    absolute: bool = False,
) -> CheckedSelection[SomeUnits]:
    """The units, with the number of entries that the scope, or `keep`, gives each parameter."""
    demand = demand_of(
        selection, shapes, units, keep=keep, scores=scores, weights=weights, absolute=absolute
    )
    counts = counts_of(selection.scope, demand, keep)
    if counts is not None:
        # A density of 0 in a mapping asks for nothing from that parameter, so its floor is ignored.
        least = {name: min(floor, counts[name]) for name, floor in demand.floor.items()}
        demand = replace(demand, floor=least)
    return CheckedSelection(units=units, demand=demand, counts=counts, how=selection.how)


# The hard threshold: the best units of a checked choice, floors respected.


def best(choice: CheckedSelection[Units[Chosen]]) -> dict[str, Chosen]:
    """The units with the largest scores: the hard threshold."""
    demand = choice.demand
    if choice.counts is None:
        return _with_floors(choice, list(demand.shapes), demand.keep)
    if not choice.units.whole:
        return choice.units.choose_each({name: choice.counts[name] for name in demand.shapes})
    chosen: dict[str, Chosen] = {}
    for name in demand.shapes:
        chosen |= _with_floors(choice, [name], choice.counts[name])
    return chosen


def _with_floors(
    choice: CheckedSelection[Units[Chosen]], names: Sequence[str], keep: int
) -> dict[str, Chosen]:
    """Let the parameters compete; those below their floor get exactly that and leave, the others
    compete again.
    """
    units, floor = choice.units, choice.demand.floor
    least = sum(floor[name] for name in names)
    if not units.whole and keep < least:
        raise ArgumentError(
            f"{keep} entries cannot keep the floor of {least} in {len(names)} parameters. "
            "Ask for more, or allow parameters to vanish with floor=0."
        )
    # Parameters that may keep no more than their floor keep exactly that: they would lose the
    # competition and cost another round. (Among groups they take part, because the nearest
    # reachable number depends on who does.)
    capacity = choice.demand.capacity
    settled = [name for name in names if not units.whole and capacity[name] <= floor[name]]
    fixed = {name: units.at_least(name, floor[name]) for name in settled}
    # Every turn settles at least one parameter, so there are at most as many turns as parameters.
    while True:
        free = [name for name in names if name not in fixed]
        spent = sum(
            units.count_kept(name, chosen) if units.whole else floor[name]
            for name, chosen in fixed.items()
        )
        together = units.choose(free, max(0, keep - spent)) if free else {}
        short = units.short(together, floor)
        if not short:
            return {name: fixed[name] if name in fixed else together[name] for name in names}
        fixed |= {name: units.at_least(name, floor[name]) for name in short}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnMask:
    """What was drawn from one parameter; `biased`: whether entries of positive score had no
    chance.
    """

    mask: Tensor
    weights: Tensor | None = None
    biased: bool = False


def draw(
    choice: CheckedSelection[TensorUnits],
    *,
    weighted: bool = False,
    generator: torch.Generator | None = None,
) -> Iterator[tuple[str, DrawnMask]]:
    """In each parameter, each run of N:M on its own, draw as many units as the hard threshold keeps
    there.

    Steps 1 to 3 of the randomised mask (Bar & Giryes 2023): threshold, counts, draw. One parameter
    at a time.
    """
    rule, units = SELECTIONS[choice.how].draw, choice.units
    for name, chosen in best(choice).items():
        if rule is None or not chosen.numel():
            yield name, DrawnMask(mask=units.mask(name, chosen))
            continue
        scores, allowed = units.rows(name)
        rows = ScoreRows(scores, units.counts(name, chosen), allowed, weighted, generator)
        drawn = rule(rows)
        weights = None if drawn.weights is None else units.entries(name, drawn.weights)
        mask = units.entries(name, drawn.mask)
        biased = weighted and _is_biased(choice, name, rows)
        yield name, DrawnMask(mask=mask, weights=weights, biased=biased)


def _is_biased(choice: CheckedSelection[TensorUnits], name: str, rows: ScoreRows) -> bool:
    """Whether an entry of positive score had no chance: no count in its row, or not allowed."""
    idle = (rows.scores > 0).any(1) & (rows.counts == 0)
    within = choice.units.within.get(name)
    forbidden = within is not None and bool(((choice.demand.scores[name] > 0) & ~within).any())
    return forbidden or bool(idle.any())


# Everything that is wrong with scores, shapes and companions, in one error.


def check_scores(scores: Mapping[str, Tensor], positive: bool, *, finite: bool = False) -> None:
    """Scores must be finite real numbers, and not negative where they are probabilities.

    `finite`: they are known to be finite and are not checked again.
    """
    if not isinstance(scores, Mapping):
        raise ScoreError(
            f"scores are a {type(scores).__name__}: give a mapping from parameter names to tensors,"
            " such as secateurs.score(model, ...) returns."
        )
    if not sum(s.numel() if isinstance(s, Tensor) else 1 for s in scores.values()):
        raise EmptySelectionError(
            "there are no scores to select from: score at least one parameter with entries."
        )
    known = finite and not positive
    fine = set() if known else sound(scores, least=0 if positive else -math.inf)
    problems = [
        f"{name!r} {text}"
        for name, score in scores.items()
        if (text := trouble(score, positive and name not in fine, finite=known or name in fine))
    ]
    if problems:
        raise ScoreError(
            f"{len(problems)} of {len(scores)} scores cannot be ranked: {'; '.join(problems)}. "
            "Fix the score, or leave these parameters out with where=."
        )


def check_shapes(pattern: Pattern, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Every parameter with entries must have a shape that the pattern divides."""
    problems = [
        f"{name!r} {shape} {text}"
        for name, shape in shapes.items()
        if math.prod(shape) and (text := pattern.misfit(shape))
    ]
    if problems:
        raise PatternError(
            f"the pattern {pattern} does not fit {len(problems)} of {len(shapes)} parameters:"
            f" {'; '.join(problems)}. Leave them out with where=, or select them by themselves with"
            " another pattern and join the two mappings."
        )


def _weight_misfits(weights: Mapping[str, Tensor], scores: Mapping[str, Tensor]) -> list[str]:
    problems = [
        unknown("score", name, scores).rstrip(".") for name in weights if name not in scores
    ]
    return problems + [
        f"{name!r} has shape {tuple(weight.shape)}, its score {tuple(scores[name].shape)}"
        for name, weight in weights.items()
        if name in scores and weight.shape != scores[name].shape
    ]


# The scope that loads much. It stands here and not in `budget`, from which its file imports.


@SCOPES.register("spectral")
def spectral(demand: Demand) -> dict[str, int]:
    """Layer sparsities with a small product bound Π(‖W‖ + ‖ΔW‖) − Π‖W‖; see
    `secateurs.masks.spectral`.
    """
    # Imported here: it measures norms, which no other scope does.
    from secateurs.masks.spectral import spectral as least_product

    return least_product(demand)
