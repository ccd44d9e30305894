"""The largest entries of many tensors, exactly so many, streamed."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from secateurs.masks.pieces import common_dtype, pieces
from secateurs.masks.ranking.compiled import kernel_for
from secateurs.masks.ranking.threshold import Cut, kth_largest


def largest(
    scores: Mapping[str, Tensor],
    count: int,
    *,
    within: Mapping[str, Tensor] | None = None,
    absolute: bool = False,
    room: int | None = None,
) -> dict[str, Tensor]:
    """Masks that keep the `count` largest scores of all tensors together: exactly `count`, never
    one more or less.

    Tie rule: of equal scores at the threshold the earlier are kept, in the order of the mapping
    and, inside a tensor, of row-major indices. Nothing is concatenated: beyond the masks, some
    megabytes are used. Large float32 and float64 scores on the CPU take one compiled pass
    (compiled.py), all others a few passes of torch.

    Args:
        scores: finite floats of any shapes, layouts and dtypes (compared in their common dtype).
        count: how many to keep, between 0 and the number of entries allowed.
        within: only entries that are True here may be kept.
        absolute: compare |scores|, so that magnitudes need no copy of the weights.
        room: how many entries `within` allows, where that was counted already.

    >>> largest({"a": torch.tensor([1.0, 5.0]), "b": torch.tensor([[5.0, 5.0]])}, 2)
    {'a': tensor([False,  True]), 'b': tensor([[ True, False]])}
    """
    # Both ways write every entry; only where nothing is chosen are zeros needed.
    new = torch.empty if count else torch.zeros
    masks = {
        name: new(score.shape, dtype=torch.bool, device=score.device)
        for name, score in scores.items()
    }
    if count:
        # The compiled pass gives up where many entries lie at the threshold; the
        # streamed one never does.
        kernel = kernel_for(scores, within or {})
        if not (
            kernel
            and kernel.largest_(
                masks,
                scores,
                count,
                within=within or {},
                absolute=absolute,
                room=room,
            )
        ):
            streamed_(masks, scores, count, within=within or {}, absolute=absolute)
    return masks


def streamed_(
    masks: Mapping[str, Tensor],
    scores: Mapping[str, Tensor],
    count: int,
    *,
    within: Mapping[str, Tensor],
    absolute: bool = False,
) -> None:
    """Write the masks of the `count` largest by pure torch: any dtype, layout and device; the
    oracle of the other.
    """
    # Two passes: the first finds the threshold, the second writes the masks and counts
    # the ties down.
    field = _Field(scores, within)
    cut = kth_largest(field.values, count, field.dtype, absolute=absolute)
    left = cut.ties
    for name, mask in masks.items():
        for (piece, allowed), kept in zip(
            field.read(name), pieces(mask), strict=True
        ):
            left -= _keep_(
                kept,
                piece.abs() if absolute else piece,
                allowed,
                Cut(value=cut.value, ties=left),
            )


class _Field:
    """Scores in their common dtype, and where they may be kept."""

    def __init__(
        self, scores: Mapping[str, Tensor], within: Mapping[str, Tensor]
    ) -> None:
        self.scores, self.within, self.dtype = scores, within, common_dtype(scores)

    def values(self) -> Iterator[Tensor]:
        for name in self.scores:
            for value, allowed in self.read(name):
                yield value if allowed is None else value[allowed]

    def read(self, name: str) -> Iterator[tuple[Tensor, Tensor | None]]:
        allowed = pieces(self.within[name]) if name in self.within else None
        for value in pieces(self.scores[name], dtype=self.dtype):
            yield value, None if allowed is None else next(allowed)


def _keep_(kept: Tensor, piece: Tensor, allowed: Tensor | None, cut: Cut) -> int:
    """Keep what is above the threshold, and the first ties as long as some are left; returns how
    many ties were.
    """
    tied = _ties(piece, allowed, cut) if cut.ties else None
    count = 0 if tied is None else int(tied.count_nonzero())
    # Where all ties of a piece stay, one comparison writes them; most pieces have none.
    compare = torch.ge if 0 < count <= cut.ties else torch.gt
    compare(piece, cut.value, out=kept)
    if allowed is not None:
        kept.logical_and_(allowed)
    if tied is not None and count > cut.ties:
        kept[tied.nonzero().flatten()[: cut.ties]] = True
    return min(count, cut.ties)


def _ties(piece: Tensor, allowed: Tensor | None, cut: Cut) -> Tensor:
    tied = piece == cut.value
    return tied if allowed is None else tied.logical_and_(allowed)
