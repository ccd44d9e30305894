"""From scores to masks: how much, where, in which shapes, chosen how."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.masks.drawing.draw import SELECTIONS
from secateurs.masks.drawing.rows import Rows
from secateurs.masks.pattern import Pattern
from secateurs.masks.ranking.hard_threshold import best
from secateurs.masks.ranking.question import Choice, Question
from secateurs.masks.ranking.reading import read
from secateurs.masks.ranking.shares import ScopeLike


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
        sparsity=sparsity,
        density=density,
        compression=compression,
        scope=scope,
        pattern=pattern,
        how=how,
        floor=floor,
        within=within,
        weights=weights,
        absolute=absolute,
    )
    return answer(question, generator=generator)


def answer(
    question: Question, *, generator: torch.Generator | None = None
) -> dict[str, Tensor]:
    """What `select` answers, for a question at hand."""
    drawn = draw(read(question), question.how, generator=generator)
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
        weights = (
            None if drawn.weights is None else units.entries(name, drawn.weights)
        )
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
