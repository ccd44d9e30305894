"""Groups of channels that share one scale, and the tensors that carry it."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from secateurs.graph import Affine, Axes

WILD = -1.0
"""The label of padding: zero has every scale."""


class Groups:
    """Union-find on labels; label 0 is pinned to scale 1."""

    def __init__(self) -> None:
        # Index 0 is the pinned group: `root` returns the smallest label, so that
        # whatever is united with 0 is pinned.
        self.parent = [0]

    def new(self, count: int) -> Tensor:
        """Fresh labels."""
        first = len(self.parent)
        self.parent += range(first, first + count)
        return torch.arange(first, first + count, dtype=torch.float64)

    def root(self, label: int) -> int:
        """The smallest label of the group."""
        while self.parent[label] != label:
            # Path halving keeps the chains short.
            self.parent[label] = self.parent[self.parent[label]]
            label = self.parent[label]
        return label

    def unite(self, a: Tensor, b: Tensor) -> None:
        """Tie the labels of two tensors, entry by entry; padding ties nothing."""
        known = (a >= 0) & (b >= 0) & (a != b)
        if bool(known.any()):
            # Each pair once: the Python loop below would otherwise run over every
            # pixel.
            pairs = torch.unique(torch.stack([a[known], b[known]]), dim=1)
            for left, right in pairs.long().T.tolist():
                low, high = sorted((self.root(left), self.root(right)))
                self.parent[high] = low

    def pin(self, labels: Tensor) -> None:
        """No scale but 1 for these."""
        self.unite(labels, torch.zeros_like(labels))

    def roots(self, labels: Tensor) -> Tensor:
        """The labels, each replaced by its group's."""
        table = torch.tensor(
            [self.root(i) for i in range(len(self.parent))], dtype=torch.float64
        )
        return torch.where(labels < 0, labels, table[labels.clamp_min(0).long()])

    def by_index(self, labels: Tensor, index: Tensor, count: int) -> Tensor:
        """Tie all labels that share an index; the label of each index (padding where it has
        none).
        """
        first = torch.full((count,), WILD, dtype=torch.float64)
        known = labels >= 0
        # Any label of an index serves: all of them are united with it next.
        first[index[known].long()] = labels[known]
        self.unite(labels, first[index.long()])
        return first


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A weight between two lots of channels, with their labels."""

    node: Affine
    name: str
    axes: Axes
    into: Tensor
    out: Tensor


@dataclass(slots=True)
class Coupling:
    """The groups of a graph, which tensors carry their scales, and what activations receive."""

    groups: Groups = field(default_factory=Groups)
    labels: dict[str, Tensor] = field(default_factory=dict)
    weights: list[Use] = field(default_factory=list)
    biases: list[tuple[str, Tensor]] = field(default_factory=list)
    diagonal: list[tuple[Affine, Tensor]] = field(default_factory=list)

    def root_of(self, labels: Tensor) -> Tensor:
        """Group numbers of labels, 0 for pinned and for padding."""
        return self.groups.roots(labels).clamp_min(0).long()
