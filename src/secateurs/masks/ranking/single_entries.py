"""Single entries as the units of a budget; N:M first marks which of them are eligible."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from secateurs.masks.pattern import Pattern
from secateurs.masks.ranking.compiled import count_true
from secateurs.masks.ranking.topk import largest
from secateurs.masks.shapes.nm import NM


class Entries:
    """Units are entries; N:M first marks which of them are eligible."""

    def __init__(
        self,
        scores: Mapping[str, Tensor],
        pattern: Pattern,
        within: Mapping[str, Tensor],
        absolute: bool,
    ) -> None:
        self.scores, self.within, self.absolute = scores, within, absolute
        # Counted once for each question.
        self._room: dict[str, int] = {}
        self.runs = pattern if isinstance(pattern, NM) else None
        self.allowed = dict(within)
        if self.runs:
            self.allowed = {
                name: self.runs.eligible(score, within.get(name))
                for name, score in scores.items()
            }

    def capacity(self, name: str) -> int:
        if name not in self._room:
            allowed = self.allowed.get(name)
            size = self.scores[name].numel()
            self._room[name] = size if allowed is None else count_true(allowed)
        return self._room[name]

    def choose(self, names: Sequence[str], keep: int) -> dict[str, Tensor]:
        return largest(
            {name: self.scores[name] for name in names},
            keep,
            within=self.allowed,
            absolute=self.absolute,
            room=sum(map(self.capacity, names)),
        )

    def at_least(self, name: str, keep: int) -> Tensor:
        if keep < self.capacity(name) or name not in self.allowed:
            return self.choose([name], keep)[name]
        # All that is left: nothing to rank. A parameter at its floor comes here in every round.
        return self.allowed[name].clone()

    def kept(self, name: str, chosen: Tensor) -> int:
        return count_true(chosen)

    def rows(self, name: str) -> tuple[Tensor, Tensor | None]:
        allowed = self.within.get(name)
        return self._rows(self.scores[name]), None if allowed is None else self._rows(
            allowed
        )

    def counts(self, name: str, chosen: Tensor) -> Tensor:
        return self._rows(chosen).sum(1)

    def entries(self, name: str, rows: Tensor) -> Tensor:
        shape = tuple(self.scores[name].shape)
        return self.runs.unrun(rows, shape) if self.runs else rows.reshape(shape)

    def mask(self, name: str, chosen: Tensor) -> Tensor:
        return chosen

    def _rows(self, tensor: Tensor) -> Tensor:
        return self.runs.runs(tensor) if self.runs else tensor.reshape(1, -1)
