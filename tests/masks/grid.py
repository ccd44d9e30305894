"""Scores every pattern fits, and what to compare masks with."""

import torch
from torch import Tensor

from secateurs.masks import NM, PATTERNS, pattern_of

SHAPES = {"a": (8, 4, 3, 3), "b": (4, 8, 2, 2), "c": (12, 4, 1, 3)}
LAYOUTS = ("contiguous", "channels_last", "transposed", "strided")


def scores(dtype: torch.dtype = torch.float32, seed: int = 1) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {
        name: torch.rand(shape, generator=g, dtype=torch.float64).to(dtype)
        for name, shape in SHAPES.items()
    }


def laid_out(given: dict[str, Tensor], layout: str) -> dict[str, Tensor]:
    """The same values in another layout of memory."""
    return {name: _LAID[layout](score) for name, score in given.items()}


def kept(masks: dict[str, Tensor]) -> int:
    return sum(int(mask.sum()) for mask in masks.values())


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def group_size(pattern: str, shape: tuple[int, ...]) -> int:
    """Entries per group; 1 for patterns that count entries."""
    value = pattern_of(pattern)
    return value.rows(torch.zeros(shape)).shape[1] if hasattr(value, "rows") else 1


def obeys(mask: Tensor, pattern: str) -> bool:
    """Whether the mask has the shape that the pattern allows."""
    value = pattern_of(pattern)
    if isinstance(value, NM):
        return bool((value.runs(mask).sum(1) <= value.n).all())
    rows = value.rows(mask) if hasattr(value, "rows") else mask.reshape(-1, 1)
    return bool((rows.all(1) | ~rows.any(1)).all())


def oracle(given: dict[str, Tensor], count: int) -> dict[str, Tensor]:
    """The obvious version of a global top-k: concatenate, sort stably, keep the first."""
    flat = torch.cat([score.double().flatten() for score in given.values()])
    mask = torch.zeros(len(flat), dtype=torch.bool)
    mask[flat.sort(descending=True, stable=True).indices[:count]] = True
    parts = mask.split([score.numel() for score in given.values()])
    return {name: part.view(given[name].shape) for name, part in zip(given, parts, strict=True)}


def _strided(score: Tensor) -> Tensor:
    wide = torch.full((*score.shape, 2), torch.nan, dtype=score.dtype)
    wide[..., 0] = score
    return wide[..., 0]


def _transposed(score: Tensor) -> Tensor:
    last = score.ndim - 1
    return score.transpose(0, last).contiguous().transpose(0, last)


_LAID = {
    "contiguous": lambda score: score,
    "channels_last": lambda score: score.to(memory_format=torch.channels_last),
    "transposed": _transposed,
    "strided": _strided,
}
PATTERN_NAMES = PATTERNS.names()
