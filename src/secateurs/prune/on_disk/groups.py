"""Groups of all stored tensors (blocks, kernels, filters, N of M) that compete for one budget.

One tensor is in memory at a time, never the scores of all groups: the threshold is found by passes
over the files, as for single entries (`cuts`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.masks.pattern import Pattern
from secateurs.masks.ranking.arguments import check_shapes
from secateurs.masks.ranking.threshold import Cut, kth_largest
from secateurs.masks.shapes.grouped import Grouped
from secateurs.masks.shapes.nm import NM
from secateurs.prune.on_disk.checkpoint import Shard
from secateurs.prune.on_disk.cuts import Field, Ties, compete
from secateurs.prune.on_disk.header import Entry
from secateurs.prune.on_disk.write import Masks

_PIECE = 1 << 20
"""Entries that are counted at a time."""


def check_fit(field: Field, pattern: Pattern) -> None:
    """Refuse tensors that the pattern does not divide, before anything is read."""
    shapes = {e.name: torch.empty(e.shape, device="meta") for _, e in field.places}
    check_shapes(shapes, pattern)


def by_groups(
    field: Field, keep: int, floor: Mapping[str, int], pattern: Grouped
) -> Masks:
    """Masks of the groups with the largest means, `keep` entries together or the nearest number
    that can be reached; the same as `select` gives in memory.
    """
    groups = _Groups(field, pattern)
    settled: dict[str, Ties] = {}
    free = list(field.places)
    while free:
        spent = sum(
            groups.kept(place, settled[place[1].name].again())
            for place in field.places
            if place[1].name in settled
        )
        shared = groups.cut(free, max(0, keep - spent))
        counting = shared.again()
        short = [p for p in free if groups.kept(p, counting) < floor[p[1].name]]
        if not short:
            settled |= {entry.name: shared for _, entry in free}
            break
        for place in short:
            settled[place[1].name] = groups.at_least(place, floor[place[1].name])
        free = [place for place in free if place not in short]

    def masks(shard: Shard, entry: Entry) -> Iterator[Tensor]:
        chosen = settled[entry.name].mask(groups.scores((shard, entry)))
        whole = pattern.spread(chosen, entry.shape).flatten()
        yield from torch.split(whole, field.lengths((shard, entry)))

    return masks


class _Groups:
    """The groups of stored tensors, by their mean scores."""

    def __init__(self, field: Field, pattern: Grouped) -> None:
        self.field, self.pattern = field, pattern

    def scores(self, place: tuple[Shard, Entry]) -> Tensor:
        """The mean score of every group of a tensor."""
        return self.pattern.group_scores(self.field.whole(place))

    def size(self, place: tuple[Shard, Entry], groups: int) -> int:
        """Entries in a group."""
        return place[1].total // groups

    def kept(self, place: tuple[Shard, Entry], ties: Ties) -> int:
        """Entries of a tensor that a cut keeps; call it in the order of the tensors."""
        scores = self.scores(place)
        return int(ties.mask(scores).sum()) * self.size(place, len(scores))

    def at_least(self, place: tuple[Shard, Entry], keep: int) -> Ties:
        """The fewest groups of one tensor with so many entries."""
        scores = self.scores(place)
        count = -(-keep // self.size(place, len(scores)))
        return Ties(cut=kth_largest(lambda: iter([scores]), count, scores.dtype))

    def cut(self, places: list[tuple[Shard, Entry]], keep: int) -> Ties:
        """Where `keep` entries end. Every group stands for as many entries as it has, so their
        threshold is the mean of the group in which the last of them lies.
        """
        total = sum(entry.total for _, entry in places)
        if keep <= 0:
            return Ties(cut=Cut(value=float("inf"), ties=0))
        entries = lambda: self._entries(places)  # noqa: E731
        found = kth_largest(entries, min(keep, total), torch.float64)
        return Ties(cut=Cut(value=found.value, ties=self._tied(places, found)))

    def _entries(self, places: list[tuple[Shard, Entry]]) -> Iterator[Tensor]:
        for place in places:
            scores = self.scores(place)
            size = self.size(place, len(scores))
            for piece in torch.split(scores, max(1, _PIECE // size)):
                yield piece.repeat_interleave(size)

    def _tied(self, places: list[tuple[Shard, Entry]], found: Cut) -> int:
        """How many groups at the threshold are kept: as many as are whole, and one more where that
        comes nearer to the number asked.
        """
        groups, left = 0, found.ties
        for place in places:
            scores = self.scores(place)
            size = self.size(place, len(scores))
            for _ in range(int((scores == found.value).sum())):
                if left < size:
                    # Of two numbers that are equally near the smaller is taken.
                    return groups + (size - left < left)
                groups, left = groups + 1, left - size
        return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs(Field):
    """Tensors of which N entries of every M compete; the others lie below all scores."""

    runs: NM

    def read(self, place: tuple[Shard, Entry]) -> Iterator[Tensor]:
        """The scores of one tensor, piece by piece."""
        whole = self.whole(place)
        # Scores are magnitudes: −1 is below every one of them.
        whole[~self.runs.eligible(whole)] = -1
        yield from torch.split(whole.flatten(), self.lengths(place))


def room_of(field: Field, runs: NM) -> dict[str, int]:
    """How many entries of each tensor N:M allows."""
    return {e.name: e.total // runs.m * runs.n for _, e in field.places}


def check_room(
    keep: int, sizes: Mapping[str, int], room: Mapping[str, int], pattern: Pattern
) -> None:
    """Refuse to keep more than a pattern allows."""
    if keep > sum(room.values()):
        raise ArgumentError(
            f"{keep} of {sum(sizes.values())} entries are asked for, but the pattern {pattern}"
            f" leaves only {sum(room.values())}. Ask for no more than that."
        )


def by_runs(field: Field, keep: int, floor: Mapping[str, int], runs: NM) -> Masks:
    """Masks of the largest entries among those that N:M allows."""
    room = room_of(field, runs)
    check_room(keep, {e.name: e.total for _, e in field.places}, room, runs)
    least = {name: min(count, room[name]) for name, count in floor.items()}
    eligible = Runs(places=field.places, scores=field.scores, runs=runs)
    cuts = compete(eligible, keep, least)

    def masks(shard: Shard, entry: Entry) -> Iterator[Tensor]:
        for piece in eligible.read((shard, entry)):
            yield cuts[entry.name].mask(piece)

    return masks
