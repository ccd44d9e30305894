"""Whole groups as the units of a budget; a group counts as many entries as are left in it."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from secateurs.masks.shapes.grouped import Grouped


class Groups:
    """Units are groups; a group counts as many entries as `within` leaves in it."""

    def __init__(
        self,
        scores: Mapping[str, Tensor],
        pattern: Grouped,
        within: Mapping[str, Tensor],
    ) -> None:
        self.pattern, self.within, self.allowed = pattern, within, within
        self.shapes = {name: tuple(score.shape) for name, score in scores.items()}
        self.scores = {
            name: pattern.group_scores(score) for name, score in scores.items()
        }
        self.sizes = {
            name: self._sizes(name, score) for name, score in scores.items()
        }

    def capacity(self, name: str) -> int:
        return int(self.sizes[name].sum())

    def choose(self, names: Sequence[str], keep: int) -> dict[str, Tensor]:
        order, reached = self._ranked(names)
        fewer = int((reached <= keep).sum())
        # Groups are whole, so the count asked may lie between two reachable ones: the
        # nearer is taken, and of two equally near ones the smaller.
        under = keep - (int(reached[fewer - 1]) if fewer else 0)
        more = fewer < len(reached) and int(reached[fewer]) - keep < under
        return self._first(names, order, fewer + more)

    def at_least(self, name: str, keep: int) -> Tensor:
        order, reached = self._ranked([name])
        return self._first([name], order, int((reached < keep).sum()) + 1)[name]

    def kept(self, name: str, chosen: Tensor) -> int:
        return int(self.sizes[name][chosen].sum())

    def rows(self, name: str) -> tuple[Tensor, Tensor | None]:
        allowed = self.sizes[name][None] > 0 if name in self.within else None
        return self.scores[name][None], allowed

    def counts(self, name: str, chosen: Tensor) -> Tensor:
        return chosen.sum()[None]

    def entries(self, name: str, rows: Tensor) -> Tensor:
        spread = self.pattern.spread(rows[0], self.shapes[name])
        # A kept group brings back only those of its entries that earlier masks had
        # kept.
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
        """Allowed groups, best first (earlier ones first among equals), and the entries reached
        with each.
        """
        # One score per group is little, so devices are joined on the CPU.
        scores = torch.cat([self.scores[name].cpu() for name in names])
        sizes = torch.cat([self.sizes[name].cpu() for name in names])
        order = scores.sort(descending=True, stable=True).indices
        # A group that earlier masks have emptied keeps nothing and would only use up
        # its turn.
        order = order[sizes[order] > 0]
        return order, sizes[order].cumsum(0)

    def _first(
        self, names: Sequence[str], order: Tensor, count: int
    ) -> dict[str, Tensor]:
        lengths = [len(self.scores[name]) for name in names]
        chosen = torch.zeros(sum(lengths), dtype=torch.bool)
        chosen[order[:count]] = True
        parts = torch.split(chosen, lengths)
        return {
            name: part.to(self.scores[name].device)
            for name, part in zip(names, parts, strict=True)
        }
