"""What is wrong with the arguments of `select`, all of it in one error."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from secateurs.errors import (
    ArgumentError,
    EmptySelectionError,
    MaskError,
    PatternError,
    ScoreError,
)
from secateurs.masks.pattern import Pattern, Unstructured
from secateurs.masks.pieces import pieces
from secateurs.misfits import mask_misfit
from secateurs.registry import unknown


def check_rows(pattern: Pattern, positive: bool) -> None:
    """Scope "row" ranks single entries; groups and draws have no rows of their own."""
    if not isinstance(pattern, Unstructured) or positive:
        raise ArgumentError(
            "scope='row' takes the largest entries of each row: it goes with"
            " pattern='unstructured' and how='topk' only."
        )


def check_scores(
    scores: Mapping[str, Tensor], positive: bool, *, finite: bool = False
) -> None:
    """Scores must be finite real numbers, and not negative where they are probabilities.

    `finite`: that they are finite is known, and need not be looked at.
    """
    if not isinstance(scores, Mapping):
        raise ScoreError(
            f"scores are a {type(scores).__name__}: give a mapping from parameter names to tensors,"
            " such as secateurs.score(model, ...) returns."
        )
    if not sum(_size(score) for score in scores.values()):
        raise EmptySelectionError(
            "there are no scores to select from: score at least one parameter with entries."
        )
    problems = [
        f"{name!r} {text}"
        for name, score in scores.items()
        if (text := trouble(score, positive, finite=finite))
    ]
    if problems:
        raise ScoreError(
            f"{len(problems)} of {len(scores)} scores cannot be ranked: {'; '.join(problems)}. "
            "Fix the score, or leave these parameters out with where=."
        )


def _size(score: object) -> int:
    return score.numel() if isinstance(score, Tensor) else 1


def trouble(score: object, positive: bool = False, *, finite: bool = False) -> str:
    """Why a tensor of scores or weights cannot be used; empty if it can."""
    if not isinstance(score, Tensor):
        return f"is a {type(score).__name__}, not a tensor"
    if score.is_meta:
        return "is on the meta device and has no values"
    if not score.is_floating_point():
        return f"has {score.dtype} values: convert it with .float()"
    return "" if finite and not positive else _bad_values(score, positive)


def _bad_values(score: Tensor, positive: bool) -> str:
    """NaN and infinity propagate through the extremes, at a tenth of the price of isfinite."""
    low, high = math.inf, -math.inf
    # In pieces, since a strided tensor would be copied whole.
    for piece in pieces(score, length=1 << 20):
        ends = torch.stack(torch.aminmax(piece)).tolist()
        if not all(map(math.isfinite, ends)):
            # Counted only once something is wrong.
            bad = sum(int((~part.isfinite()).sum()) for part in pieces(score))
            return f"has {bad} NaN or infinite values of {score.numel()}"
        low, high = min(low, ends[0]), max(high, ends[1])
    if positive and low < 0:
        return (
            f"has negative values (down to {low:.3g}), which are no probabilities: shift them, or"
            " use how='topk'"
        )
    return ""


def check_shapes(scores: Mapping[str, Tensor], pattern: Pattern) -> None:
    """Every parameter must have a shape that the pattern divides."""
    misfits = {
        name: pattern.misfit(tuple(score.shape))
        for name, score in scores.items()
        if score.numel()
    }
    problems = [
        f"{name!r} {tuple(scores[name].shape)} {text}"
        for name, text in misfits.items()
        if text
    ]
    if problems:
        raise PatternError(
            f"the pattern {pattern} does not fit {len(problems)} of {len(scores)} parameters:"
            f" {'; '.join(problems)}. Leave them out with where=, or select them by themselves with"
            " another pattern and join the two mappings."
        )


def check_companions(
    what: str,
    scores: Mapping[str, Tensor],
    given: Mapping[str, Tensor] | None,
    *,
    bool_only: bool,
) -> None:
    """Masks or weights that accompany the scores must have their names and shapes."""
    problems = []
    for name, tensor in (given or {}).items():
        if name not in scores:
            problems.append(unknown("score", name, scores).rstrip("."))
        elif bool_only and (problem := mask_misfit(tensor, scores[name].shape)):
            problems.append(f"{name!r} {problem}")
        elif tensor.shape != scores[name].shape:
            problems.append(
                f"{name!r} has shape {tuple(tensor.shape)}, its score {tuple(scores[name].shape)}"
            )
    if problems:
        raise MaskError(f"{what}= does not match the scores: {'; '.join(problems)}.")
