"""Histograms as values: the share of each group that falls between two values."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.parameters import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """The share of all weights, and of those each method keeps, that fall between two values."""

    low: float
    high: float
    shares: dict[str, float]


def flat(tensors: Params) -> Tensor:
    """All entries in one vector."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors.values()])


def histogram(groups: Mapping[str, Tensor], bins: int) -> list[Bin]:
    """Shares per bin over the common range of all groups."""
    low = min(float(group.min()) for group in groups.values())
    high = max(float(group.max()) for group in groups.values())
    edges = torch.linspace(low, high, bins + 1).tolist()
    counts = {
        name: torch.histc(group.float(), bins, low, high) / len(group)
        for name, group in groups.items()
    }
    return [
        Bin(
            low=edges[i],
            high=edges[i + 1],
            shares={name: float(share[i]) for name, share in counts.items()},
        )
        for i in range(bins)
    ]


def some_of(values: Tensor, count: int, source: torch.Generator) -> Tensor:
    return values[torch.randperm(len(values), generator=source)[:count]]
