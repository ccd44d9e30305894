"""Random masks with weights: an unbiased sketch of the parameters."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.masks.budget import Amount
from secateurs.masks.draw import SELECTIONS
from secateurs.masks.patterns import Pattern
from secateurs.masks.question import Question, ScopeLike, Selection
from secateurs.masks.select import draw, read


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """Masks and weights by parameter name. Multiply a parameter with its weights for the sketch of
    it.

    E[weight] = 1 on every entry of positive score, given how many units each parameter draws.
    `biased` names the parameters where that fails because somewhere nothing at all is drawn (a
    floor of 0, a run of N:M that the threshold leaves empty, entries outside `within`), so that
    entries of positive score have weight 0 always.
    """

    masks: dict[str, Tensor]
    weights: dict[str, Tensor]
    biased: tuple[str, ...]


def sketch(
    scores: Mapping[str, Tensor],
    *,
    sparsity: float | None = None,
    density: float | None = None,
    compression: float | None = None,
    scope: ScopeLike = "global",
    pattern: str | Pattern = "unstructured",
    how: str = "replacement",
    floor: float = 1,
    within: Mapping[str, Tensor] | None = None,
    weights: Mapping[str, Tensor] | None = None,
    generator: torch.Generator | None = None,
) -> Sketch:
    """Draw masks as `select` does, with weights that make the masked parameter unbiased: E[weights
    · w] = w.

    "replacement" weighs c_i / (s·p_i) (Bar & Giryes 2023, algorithm 1), "priority" max(1, τ/s_i),
    "systematic" 1/π_i, "sample" 1/(1 − exp(−s_i τ)) with τ the first loser. The arguments are those
    of `select`.

    >>> drawn = sketch({"w": torch.tensor([4.0, 4.0, 1.0])}, density=2 / 3, how="priority")
    >>> int(drawn.masks["w"].sum()), bool((drawn.weights["w"] >= drawn.masks["w"]).all())
    (2, True)
    """
    if SELECTIONS[how].draw is None:
        randoms = ", ".join(str(name) for name in SELECTIONS if SELECTIONS[name].draw)
        raise ArgumentError(
            f"how={how!r} draws nothing, so it has no weights. Random draws: {randoms}."
        )
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
    )
    drawn = dict(draw(read(question), how, weighted=True, generator=generator))
    return Sketch(
        masks={name: part.mask for name, part in drawn.items()},
        weights={name: _as(scores[name], part.weights) for name, part in drawn.items()},
        biased=tuple(name for name, part in drawn.items() if part.biased),
    )


def _as(score: Tensor, weights: Tensor | None) -> Tensor:
    """In the dtype of the scores, float32 at least; weights of 10**5 do not fit half precision."""
    dtype = torch.promote_types(score.dtype, torch.float32)
    return score.new_zeros(score.shape, dtype=dtype) if weights is None else weights.to(dtype)
