"""Random masks with weights: an unbiased sketch of the parameters."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor

from secateurs.base.registry import refuse_unknown
from secateurs.errors import ArgumentError
from secateurs.masks.budget import Selection, SelectionFields
from secateurs.masks.draw import SELECTIONS
from secateurs.masks.select import check_selection, draw


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """Masks and weights by parameter name. A parameter times its weights is its sketch.

    E[weight] = 1 on every entry of positive score, given how many units each parameter draws.
    `biased` names the parameters where that fails because nothing at all is drawn in some place (a
    floor of 0, a run of N:M that the threshold leaves empty, entries outside `within`), so that
    entries of positive score always have weight 0."""

    masks: dict[str, Tensor]
    weights: dict[str, Tensor]
    biased: tuple[str, ...]


def sketch(
    scores: Mapping[str, Tensor],
    *,
    within: Mapping[str, Tensor] | None = None,
    weights: Mapping[str, Tensor] | None = None,
    generator: torch.Generator | None = None,
    **selection: Unpack[SelectionFields],
) -> Sketch:
    """Draw masks as `select` does, with weights that make the masked parameter unbiased: E[weights
    · w] = w.

    "replacement" weighs c_i / (s·p_i) (Bar & Giryes 2023, algorithm 1), "priority" max(1, τ/s_i),
    "systematic" 1/π_i, "sample" 1/(1 − exp(−s_i τ)) with τ the first loser. The arguments are those
    of `select`; `how` is "replacement" unless given.

    >>> drawn = sketch({"w": torch.tensor([4.0, 4.0, 1.0])}, density=2 / 3, how="priority")
    >>> int(drawn.masks["w"].sum()), bool((drawn.weights["w"] >= drawn.masks["w"]).all())
    (2, True)
    """
    refuse_unknown(sketch, selection, SelectionFields.__annotations__)
    selection.setdefault("how", "replacement")
    asked = Selection(**selection)
    if SELECTIONS[asked.how].draw is None:
        randoms = ", ".join(str(name) for name in SELECTIONS if SELECTIONS[name].draw)
        raise ArgumentError(
            f"how={asked.how!r} draws nothing, so it has no weights. Random draws: {randoms}."
        )
    choice = check_selection(asked, scores, within=within, weights=weights)
    drawn = dict(draw(choice, weighted=True, generator=generator))
    return Sketch(
        masks={name: part.mask for name, part in drawn.items()},
        weights={name: _as(scores[name], part.weights) for name, part in drawn.items()},
        biased=tuple(name for name, part in drawn.items() if part.biased),
    )


def _as(score: Tensor, weights: Tensor | None) -> Tensor:
    """In the dtype of the scores, float32 at least; weights of 10**5 do not fit half precision."""
    dtype = torch.promote_types(score.dtype, torch.float32)
    return score.new_zeros(score.shape, dtype=dtype) if weights is None else weights.to(dtype)
