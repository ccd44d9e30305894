"""What a budget counts: single entries or groups, behind one interface for choosing, drawing and
spreading.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from secateurs.masks.pattern import Pattern
from secateurs.masks.ranking.single_entries import Entries
from secateurs.masks.ranking.whole_groups import Groups
from secateurs.masks.shapes.grouped import Grouped


class Units(Protocol):
    """The things that are kept or pruned, per parameter."""

    @property
    def allowed(self) -> Mapping[str, Tensor]:
        """The entries that may be kept, of parameters where not all may."""

    def capacity(self, name: str) -> int:
        """Entries that may be kept at most."""

    def choose(self, names: Sequence[str], keep: int) -> dict[str, Tensor]:
        """Unit masks of the best units with `keep` entries together, or the nearest reachable
        number.
        """

    def at_least(self, name: str, keep: int) -> Tensor:
        """The unit mask of the best units of one parameter with no fewer than `keep` entries."""

    def kept(self, name: str, chosen: Tensor) -> int:
        """Entries that a unit mask keeps."""

    def rows(self, name: str) -> tuple[Tensor, Tensor | None]:
        """Scores `(rows, units)` to draw from, each row on its own, and which units may be
        drawn.
        """

    def counts(self, name: str, chosen: Tensor) -> Tensor:
        """Units that a unit mask keeps in each row."""

    def entries(self, name: str, rows: Tensor) -> Tensor:
        """Values per row and unit, as one value per entry of the parameter."""

    def mask(self, name: str, chosen: Tensor) -> Tensor:
        """The entry mask of a unit mask."""


def units_of(
    scores: Mapping[str, Tensor],
    pattern: Pattern,
    within: Mapping[str, Tensor],
    *,
    absolute: bool = False,
) -> Units:
    """The units of a pattern; `absolute` ranks single entries by |score| (other patterns want
    non-negative scores).
    """
    if isinstance(pattern, Grouped):
        return Groups(scores, pattern, within)
    return Entries(scores, pattern, within, absolute)
