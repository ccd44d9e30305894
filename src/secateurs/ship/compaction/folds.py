"""What is added to which tensors when constant channels go, and the tensors after it."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from secateurs.graph import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Input channels of a weight that go, the channel that stands for them, and how often it stands
    for each."""

    dim: int
    index: Tensor
    factors: Tensor
    keeper: int


@dataclass(slots=True, kw_only=True)
class Folds:
    """What is added to which tensors, and what cannot go and why.

    Attributes:
        added: Additions to vectors by name.
        columns: What is added to a channel of a weight.
        fresh: Biases that are new, with the labels of their entries.
        kept: Labels that have to stay, with the reason.
    """

    added: dict[str, Tensor] = field(default_factory=dict)
    columns: dict[str, Columns] = field(default_factory=dict)
    fresh: dict[str, Tensor] = field(default_factory=dict)
    kept: dict[str, Tensor] = field(default_factory=dict)

    def keep(self, why: str, labels: Tensor) -> None:
        """These labels stay."""
        self.kept[why] = torch.cat([self.kept.get(why, labels[:0]), labels])


def folded(state: State, result: Folds) -> dict[str, Tensor]:
    """The tensors that the folds change, still at full width."""
    changed: dict[str, Tensor] = {}
    for name, columns in result.columns.items():
        weight = state[name].clone()
        # A view: the addition below writes to the weight.
        channels = weight.movedim(columns.dim, -1)
        channels[..., columns.keeper] += (
            channels[..., columns.index] * columns.factors
        ).sum(-1)
        changed[name] = weight
    for name, addition in result.added.items():
        before = torch.zeros_like(addition) if name in result.fresh else state[name]
        changed[name] = before + addition
    return changed
