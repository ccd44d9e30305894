"""Labels that must go together, as a union-find; label 0 always stays."""

import torch
from torch import Tensor

from secateurs.ship.compaction.marks import together

PINNED = 0
_TIED = "is tied to what stays"


class Groups:
    """Labels, united where the network ties them. Label 0 is pinned: whatever is united with it
    stays.

    The same unions are kept a second time without the pinned label, so that of channels that stay
    it can be told which of them are dead, and why they stay.
    """

    def __init__(self) -> None:
        self._all = _Unions()
        self._unpinned = _Unions()
        self.pins: list[tuple[str, Tensor]] = []

    def __len__(self) -> int:
        return len(self._all)

    def new(self, count: int) -> Tensor:
        """Fresh labels."""
        self._unpinned.new(count)
        return self._all.new(count)

    def unite(self, a: Tensor, b: Tensor) -> None:
        """Tie the labels of two tensors, entry by entry, with broadcasting."""
        self._all.unite(a, b)
        a, b = together(a, b)
        free = (a != PINNED) & (b != PINNED)
        self._unpinned.unite(a[free], b[free])
        for bound in (a[b == PINNED], b[a == PINNED]):
            self._note(_TIED, bound)

    def pin(self, labels: Tensor, why: str) -> None:
        """These stay."""
        self._note(why, labels)
        self._all.unite(labels, torch.zeros_like(labels))

    def roots(self, labels: Tensor) -> Tensor:
        """The labels, each replaced by the smallest of its group."""
        return self._all.roots(labels)

    def unpinned(self, labels: Tensor) -> Tensor:
        """The same without the ties to what stays."""
        return self._unpinned.roots(labels)

    def reasons(self) -> dict[int, str]:
        """Why unpinned roots stay: the first pin that met them, a named one before a mere tie."""
        found: dict[int, str] = {}
        # The last to write is the one that counts: ties first, then names, latest before earliest.
        pins = sorted(self.pins, key=lambda pin: pin[0] != _TIED)
        ties = [pin for pin in pins if pin[0] == _TIED]
        for why, labels in (*reversed(ties), *reversed(pins[len(ties) :])):
            found |= dict.fromkeys(self.unpinned(labels).tolist(), why)
        return found

    def shared(self, rows: Tensor) -> Tensor:
        """Tie the labels within each row; the label of each row."""
        self.unite(rows, rows[:, :1])
        return rows[:, 0]

    def _note(self, why: str, labels: Tensor) -> None:
        labels = torch.unique(labels[labels != PINNED])
        if len(labels):
            self.pins.append((why, labels))


class _Unions:
    """A union-find of numbers from 0."""

    def __init__(self) -> None:
        self._parent = [PINNED]
        self._table: Tensor | None = None

    def __len__(self) -> int:
        return len(self._parent)

    def new(self, count: int) -> Tensor:
        first = len(self._parent)
        self._parent += range(first, first + count)
        self._table = None
        return torch.arange(first, first + count)

    def unite(self, a: Tensor, b: Tensor) -> None:
        a, b = together(self.roots(a), self.roots(b))
        differ = a != b
        if bool(differ.any()):
            # A feature map holds the same pair at every pixel: each is united once.
            pairs = torch.unique(torch.stack([a[differ], b[differ]]), dim=1)
            for left, right in pairs.T.tolist():
                # The smaller label becomes the root, so whatever is united with label 0
                # ends there: pinned.
                low, high = sorted((self._root(left), self._root(right)))
                self._parent[high] = low
            self._table = None

    def roots(self, labels: Tensor) -> Tensor:
        # One look-up serves a whole tensor, and is built
        # anew only after something was united.
        if self._table is None:
            self._table = _followed(torch.tensor(self._parent))
        return self._table[labels]

    def _root(self, label: int) -> int:
        while self._parent[label] != label:
            # Halving the path on the way keeps later walks short.
            self._parent[label] = self._parent[self._parent[label]]
            label = self._parent[label]
        return label


def _followed(parent: Tensor) -> Tensor:
    """Every label's root: parents of parents until nothing changes, doubling the way each time."""
    while not torch.equal(further := parent[parent], parent):
        parent = further
    return parent
