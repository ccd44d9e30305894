"""Which entries of stored tensors are kept, decided while reading: a threshold, and how many ties
of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.masks.ranking.threshold import Cut, kth_largest
from secateurs.prune.on_disk.checkpoint import Shard
from secateurs.prune.on_disk.header import Entry
from secateurs.prune.on_disk.scores import Chunks, Random

Places = Sequence[tuple[Shard, Entry]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Tensors that compete, as scores of one dtype."""

    places: Places
    scores: Chunks

    @property
    def dtype(self) -> torch.dtype:
        """The smallest dtype that holds all scores exactly."""
        if isinstance(self.scores, Random):
            return torch.float32
        each = [getattr(torch, entry.kind.torch) for _, entry in self.places]
        common: torch.dtype = reduce(torch.promote_types, each)
        return common

    def read(self, place: tuple[Shard, Entry]) -> Iterator[Tensor]:
        """The scores of one tensor, piece by piece."""
        for piece in self.scores(*place):
            # A common dtype, so that bfloat16 and float32 weights of one network are
            # compared exactly.
            yield piece.abs().to(self.dtype)

    def whole(self, place: tuple[Shard, Entry]) -> Tensor:
        """The scores of one tensor at once, in its shape."""
        pieces = [piece.clone() for piece in Field.read(self, place)]
        return torch.cat(pieces).view(place[1].shape)

    def lengths(self, place: tuple[Shard, Entry]) -> list[int]:
        """In how many entries a time its bytes are read and written."""
        return [len(piece) for piece in self.scores(*place)]

    def cut(self, keep: int) -> "Ties":
        """Where the `keep` largest scores end. Of equal ones the first are kept."""
        if keep <= 0:
            # Nothing lies above infinity, so nothing is kept.
            return Ties(cut=Cut(value=float("inf"), ties=0))
        every = lambda: (piece for place in self.places for piece in self.read(place))  # noqa: E731
        return Ties(cut=kth_largest(every, keep, self.dtype))


class Ties:
    """A cut, and how many of its ties are left to keep."""

    def __init__(self, cut: Cut) -> None:
        self.value, self.left = cut.value, cut.ties

    def again(self) -> "Ties":
        """The same cut, from the first entry."""
        return Ties(cut=Cut(value=self.value, ties=self.left))

    def mask(self, scores: Tensor) -> Tensor:
        """Which of the next entries are kept; call it in the order of the entries."""
        kept = scores > self.value
        if self.left:
            tied = (scores == self.value).nonzero().flatten()[: self.left]
            kept[tied] = True
            # Ties are kept in the order of the bytes, as `select` keeps them in memory.
            self.left -= len(tied)
        return kept


def compete(field: Field, keep: int, floor: Mapping[str, int]) -> dict[str, Ties]:
    """One cut for all tensors; those below their floor get exactly that, the others compete again.

    The same as `select` does in memory: every turn settles a tensor at least.
    """
    total = sum(floor[entry.name] for _, entry in field.places)
    if keep < total:
        raise ArgumentError(
            f"{keep} entries cannot keep the floor of {total} in {len(field.places)} tensors. Ask"
            " for more, or allow tensors to vanish with floor=0."
        )
    settled: dict[str, Ties] = {}
    free = list(field.places)
    while free:
        left = keep - sum(floor[name] for name in settled)
        together = replace(field, places=free)
        shared = together.cut(left)
        short = _short(together, shared, floor)
        if not short:
            return settled | {entry.name: shared for _, entry in free}
        for place in short:
            alone = replace(field, places=[place])
            settled[place[1].name] = alone.cut(floor[place[1].name])
        free = [place for place in free if place not in short]
    return settled


def _short(
    field: Field, cut: Ties, floor: Mapping[str, int]
) -> list[tuple[Shard, Entry]]:
    """The tensors that would keep less than their floor."""
    # The cheap question first: it is nearly always yes, and reads one piece per tensor.
    if all(
        _reaches(field, place, cut.value, floor[place[1].name])
        for place in field.places
    ):
        return []
    short, counting = [], cut.again()
    for place in field.places:
        kept = sum(int(counting.mask(piece).sum()) for piece in field.read(place))
        if kept < floor[place[1].name]:
            short.append(place)
    return short


def _reaches(
    field: Field, place: tuple[Shard, Entry], value: float, least: int
) -> bool:
    """Whether so many entries lie above the cut. Reading ends as soon as they do: with the usual
    floor of one entry that is at the first piece.
    """
    found = 0
    for piece in field.read(place):
        if found >= least:
            break
        found += int((piece > value).sum())
    return found >= least
