"""Labels that must go together, as a union-find; label 0 always stays."""

import torch
from torch import Tensor

from secateurs.ship.compaction.marks import together

PINNED = 0


class Groups:
    """Labels, united where the network ties them. Label 0 is pinned: whatever is united with it
    stays."""

    def __init__(self) -> None:
        self._parent = [PINNED]
        self._table: Tensor | None = None

    def __len__(self) -> int:
        return len(self._parent)

    def new(self, count: int) -> Tensor:
        """Fresh labels."""
        first = len(self._parent)
        self._parent += range(first, first + count)
        self._table = None
        return torch.arange(first, first + count)

    def unite(self, a: Tensor, b: Tensor) -> None:
        """Tie the labels of two tensors, entry by entry, with broadcasting."""
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

    def pin(self, labels: Tensor) -> None:
        """These stay."""
        self.unite(labels, torch.zeros_like(labels))

    def roots(self, labels: Tensor) -> Tensor:
        """The labels, each replaced by the smallest of its group."""
        # One look-up serves a whole tensor, and is built
        # anew only after something was united.
        if self._table is None:
            self._table = _followed(torch.tensor(self._parent))
        return self._table[labels]

    def shared(self, rows: Tensor) -> Tensor:
        """Tie the labels within each row; the label of each row."""
        self.unite(rows, rows[:, :1])
        return rows[:, 0]

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
