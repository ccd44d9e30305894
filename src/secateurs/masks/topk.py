"""The largest entries of many tensors, exactly so many, streamed."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from secateurs.masks.stream import common_dtype, pieces
from secateurs.masks.threshold import kth_largest


def largest(
    scores: Mapping[str, Tensor], count: int, *, within: Mapping[str, Tensor] | None = None, absolute: bool = False
) -> dict[str, Tensor]:
    """Masks that keep the `count` largest scores of all tensors together: exactly `count`, never one more or less.

    Tie rule: of equal scores at the threshold the earlier are kept, in the order of the mapping and, inside
    a tensor, of row-major indices. Nothing is concatenated: beyond the masks, some megabytes are used.

    Args:
        scores: finite floats of any shapes, layouts and dtypes (compared in their common dtype).
        count: how many to keep, between 0 and the number of entries allowed.
        within: only entries that are True here may be kept.
        absolute: compare |scores|, so that magnitudes need no copy of the weights.

    >>> largest({"a": torch.tensor([1.0, 5.0]), "b": torch.tensor([[5.0, 5.0]])}, 2)
    {'a': tensor([False,  True]), 'b': tensor([[ True, False]])}
    """
    field = _Field(scores, within or {}, absolute)
    if count == 0 or not scores:
        return {name: torch.zeros(score.shape, dtype=torch.bool, device=score.device) for name, score in scores.items()}
    value = kth_largest(field.allowed_values, count, field.dtype)
    masks = {name: field.above(name, value) for name in scores}
    missing = count - sum(int(mask.sum()) for mask in masks.values())
    for name, mask in masks.items():
        missing -= field.add_ties_(name, mask, value, missing)
    return masks


class _Field:
    """Scores, where they may be kept and how they are read."""

    def __init__(self, scores: Mapping[str, Tensor], within: Mapping[str, Tensor], absolute: bool) -> None:
        self.scores, self.within, self.absolute = scores, within, absolute
        self.dtype = common_dtype(scores) if scores else torch.float32

    def allowed_values(self) -> Iterator[Tensor]:
        for name in self.scores:
            for value, allowed in self._read(name):
                yield value if allowed is None else value[allowed]

    def above(self, name: str, value: float) -> Tensor:
        score = self.scores[name]
        mask = torch.empty(score.shape, dtype=torch.bool, device=score.device)
        for (piece, allowed), kept in zip(self._read(name), pieces(mask), strict=True):
            torch.gt(piece, value, out=kept)
            if allowed is not None:
                kept.logical_and_(allowed)
        return mask

    def add_ties_(self, name: str, mask: Tensor, value: float, missing: int) -> int:
        """Keep the first `missing` entries equal to the threshold; returns how many there were to keep."""
        added = 0
        for (piece, allowed), kept in zip(self._read(name), pieces(mask), strict=True):
            if added == missing:
                break
            tied = piece == value
            if allowed is not None:
                tied.logical_and_(allowed)
            first = tied.nonzero().flatten()[: missing - added]
            kept[first] = True
            added += len(first)
        return added

    def _read(self, name: str) -> Iterator[tuple[Tensor, Tensor | None]]:
        values = pieces(self.scores[name], dtype=self.dtype)
        allowed = pieces(self.within[name]) if name in self.within else None
        for value in values:
            yield value.abs() if self.absolute else value, None if allowed is None else next(allowed)
