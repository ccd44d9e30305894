"""What a budget counts: single entries or groups, behind one interface for choosing, drawing and
spreading.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from secateurs.masks.patterns import NM, Grouped, Pattern
from secateurs.masks.pieces import count_each
from secateurs.masks.topk import largest, largest_of_each, largest_of_rows

Chosen = TypeVar("Chosen")
"""Which units of one parameter are kept: a mask of units, or a threshold where scores are read from
a file.
"""


class Units(Protocol[Chosen]):
    """What is kept or pruned as one, per parameter: entries or groups."""

    whole: bool
    """Whether units are groups of entries, so that not every count can be reached."""
    allowed: Mapping[str, Tensor]
    """The entries that may be kept, of parameters where not all may."""

    def capacity(self, name: str) -> int:
        """Entries that may be kept at most."""

    def choose(self, names: Sequence[str], keep: int) -> dict[str, Chosen]:
        """The best units of these parameters: `keep` entries together, or the nearest number that
        whole units can reach.
        """

    def choose_each(self, keep: Mapping[str, int]) -> dict[str, Chosen]:
        """The best units of each parameter by itself."""
        return {name: self.choose([name], count)[name] for name, count in keep.items()}

    def at_least(self, name: str, keep: int) -> Chosen:
        """The best units of one parameter with no fewer than `keep` entries."""

    def count_kept(self, name: str, chosen: Chosen) -> int:
        """Entries that the chosen units keep."""

    def short(self, chosen: Mapping[str, Chosen], floor: Mapping[str, int]) -> list[str]:
        """Those of the chosen parameters that keep less than their floor."""
        return [
            name for name, units in chosen.items() if self.count_kept(name, units) < floor[name]
        ]


class TensorUnits(Units[Tensor], Protocol):
    """Units of scores in memory, chosen by masks of units: they can be drawn, too."""

    within: Mapping[str, Tensor]
    """The earlier masks."""

    def rows(self, name: str) -> tuple[Tensor, Tensor | None]:
        """Scores `(rows, units)` to draw from, each row on its own, and which units may be
        drawn.
        """

    def counts(self, name: str, chosen: Tensor) -> Tensor:
        """How many units are chosen in each row."""

    def entries(self, name: str, rows: Tensor) -> Tensor:
        """Values per row and unit, as one value per entry of the parameter."""

    def mask(self, name: str, chosen: Tensor) -> Tensor:
        """The entry mask of the chosen units."""


def units_of(
    scores: Mapping[str, Tensor],
    pattern: Pattern,
    within: Mapping[str, Tensor],
    *,
    absolute: bool = False,
) -> TensorUnits:
    """The units of a pattern; `absolute` ranks single entries by |score| (other patterns want
    non-negative scores).
    """
    if isinstance(pattern, Grouped):
        return GroupUnits(scores, pattern, within)
    return EntryUnits(scores, pattern, within, absolute)


class EntryUnits(TensorUnits):
    """Units are entries; N:M first marks which of them are eligible."""

    whole = False

    def __init__(
        self,
        scores: Mapping[str, Tensor],
        pattern: Pattern,
        within: Mapping[str, Tensor],
        absolute: bool = False,
    ) -> None:
        self.scores, self.within, self.absolute = scores, within, absolute
        self.nm = pattern if isinstance(pattern, NM) else None
        self.allowed = _Eligible(self.nm, scores, within) if self.nm else within
        self._room = {name: score.numel() for name, score in scores.items()}
        if self.nm:
            # Of a whole run, N are eligible.
            self._room = {n: size // self.nm.m * self.nm.n for n, size in self._room.items()}
        # Counted once, and of all together.
        self._room |= count_each({name: self.allowed[name] for name in within})

    def capacity(self, name: str) -> int:
        return self._room[name]

    def choose(self, names: Sequence[str], keep: int) -> dict[str, Tensor]:
        room = sum(map(self.capacity, names))
        if keep == room:
            # Nothing to rank: N:M without a budget, and a parameter at its floor in every round.
            return {name: self._all(name) for name in names}
        return largest(
            {name: self.scores[name] for name in names},
            keep,
            within=self.allowed,
            absolute=self.absolute,
            room=room,
        )

    def choose_each(self, keep: Mapping[str, int]) -> dict[str, Tensor]:
        full = {name for name, count in keep.items() if count == self._room[name]}
        chosen = largest_of_each(
            {name: self.scores[name] for name in keep if name not in full},
            keep,
            within=self.allowed,
            absolute=self.absolute,
            room=self._room,
        )
        return {name: self._all(name) if name in full else chosen[name] for name in keep}

    def at_least(self, name: str, keep: int) -> Tensor:
        return self.choose([name], min(keep, self._room[name]))[name]

    def count_kept(self, name: str, chosen: Tensor) -> int:
        return count_each({name: chosen})[name]

    def short(self, chosen: Mapping[str, Tensor], floor: Mapping[str, int]) -> list[str]:
        kept = count_each(chosen)
        return [name for name in chosen if kept[name] < floor[name]]

    def rows(self, name: str) -> tuple[Tensor, Tensor | None]:
        allowed = self.within.get(name)
        return self._rows(self.scores[name]), None if allowed is None else self._rows(allowed)

    def counts(self, name: str, chosen: Tensor) -> Tensor:
        return self._rows(chosen).sum(1)

    def entries(self, name: str, rows: Tensor) -> Tensor:
        shape = tuple(self.scores[name].shape)
        return self.nm.unrun(rows, shape) if self.nm else rows.reshape(shape)

    def mask(self, name: str, chosen: Tensor) -> Tensor:
        return chosen

    def _all(self, name: str) -> Tensor:
        """The mask of everything that is allowed."""
        if name in self.allowed:
            return self.allowed[name].clone(memory_format=torch.contiguous_format)
        score = self.scores[name]
        return torch.ones(score.shape, dtype=torch.bool, device=score.device)

    def _rows(self, tensor: Tensor) -> Tensor:
        return self.nm.runs(tensor) if self.nm else tensor.reshape(1, -1)


class _Eligible(Mapping[str, Tensor]):
    """What N:M lets each parameter keep, found when it is asked for: the last round of a pruning is
    planned by counts alone.
    """

    def __init__(
        self, pattern: NM, scores: Mapping[str, Tensor], within: Mapping[str, Tensor]
    ) -> None:
        self.pattern, self.scores, self.within = pattern, scores, within
        self.found: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.found:
            within = self.within.get(name)
            self.found[name] = self.pattern.eligible(self.scores[name], within)
        return self.found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.scores)

    def __len__(self) -> int:
        return len(self.scores)


class RowUnits(EntryUnits):
    """Units are entries, and rows keep as many each."""

    def choose_each(self, keep: Mapping[str, int]) -> dict[str, Tensor]:
        return {
            name: largest_of_rows(self.scores[name], count, self.allowed.get(name))
            for name, count in keep.items()
        }


class GroupUnits(TensorUnits):
    """Units are groups; a group counts as many entries as `within` leaves in it."""

    whole = True

    def __init__(
        self,
        scores: Mapping[str, Tensor],
        pattern: Grouped,
        within: Mapping[str, Tensor],
    ) -> None:
        self.pattern, self.within, self.allowed = pattern, within, within
        self.shapes = {name: tuple(score.shape) for name, score in scores.items()}
        self.scores = {name: pattern.group_scores(score) for name, score in scores.items()}
        self.sizes = {name: self._sizes(name, score) for name, score in scores.items()}

    def capacity(self, name: str) -> int:
        return int(self.sizes[name].sum()) if name in self.within else math.prod(self.shapes[name])

    def choose(self, names: Sequence[str], keep: int) -> dict[str, Tensor]:
        order, reached = self._ranked(names)
        fewer = int((reached <= keep).sum())
        # Groups are whole, so the requested count may be between two reachable ones: the nearer is
        # taken, and of two equally near ones the smaller.
        under = keep - (int(reached[fewer - 1]) if fewer else 0)
        more = fewer < len(reached) and int(reached[fewer]) - keep < under
        return self._first(names, order, fewer + more)

    def at_least(self, name: str, keep: int) -> Tensor:
        order, reached = self._ranked([name])
        return self._first([name], order, int((reached < keep).sum()) + 1)[name]

    def count_kept(self, name: str, chosen: Tensor) -> int:
        return int((self.sizes[name] * chosen).sum())

    def short(self, chosen: Mapping[str, Tensor], floor: Mapping[str, int]) -> list[str]:
        # Read at once: a GPU is waited for with every number.
        kept = {name: (self.sizes[name] * groups).sum() for name, groups in chosen.items()}
        if not kept:
            return []
        home = self._home(list(chosen))
        numbers = torch.stack([number.to(home) for number in kept.values()]).tolist()
        return [name for name, number in zip(kept, numbers, strict=True) if number < floor[name]]

    def rows(self, name: str) -> tuple[Tensor, Tensor | None]:
        allowed = self.sizes[name][None] > 0 if name in self.within else None
        return self.scores[name][None], allowed

    def counts(self, name: str, chosen: Tensor) -> Tensor:
        return chosen.sum()[None]

    def entries(self, name: str, rows: Tensor) -> Tensor:
        spread = self.pattern.spread(rows[0], self.shapes[name])
        # A kept group brings back only those of its entries that earlier masks had kept.
        return spread * self.within[name] if name in self.within else spread

    def mask(self, name: str, chosen: Tensor) -> Tensor:
        return self.entries(name, chosen[None])

    def _sizes(self, name: str, score: Tensor) -> Tensor:
        if name in self.within:
            return self.pattern.rows(self.within[name]).sum(1)
        return torch.full_like(
            self.scores[name], self.pattern.rows(score).shape[1], dtype=torch.int64
        )

    def _ranked(self, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Allowed groups, best first, and the entries reached with each."""
        home = self._home(names)
        scores = torch.cat([self.scores[name].to(home) for name in names])
        sizes = torch.cat([self.sizes[name].to(home) for name in names])
        # Stable, for equal scores (the rule in masks/topk.py).
        order = scores.sort(descending=True, stable=True).indices
        if not self.within.keys().isdisjoint(names):
            # A group that earlier masks have emptied keeps nothing and would only use up its turn.
            order = order[sizes[order] > 0]
        return order, sizes[order].cumsum(0)

    def _home(self, names: Sequence[str]) -> torch.device:
        """Where the groups of several devices meet."""
        return self.scores[names[0]].device

    def _first(self, names: Sequence[str], order: Tensor, count: int) -> dict[str, Tensor]:
        lengths = [len(self.scores[name]) for name in names]
        chosen = torch.zeros(sum(lengths), dtype=torch.bool, device=order.device)
        chosen[order[:count]] = True
        parts = torch.split(chosen, lengths)
        return {
            name: part.to(self.scores[name].device) for name, part in zip(names, parts, strict=True)
        }
