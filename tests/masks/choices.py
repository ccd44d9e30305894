"""Choices from the scores of the grid, and a module whose weight is shared."""

import torch
from torch import nn

from masks.grid import (
    scores,
)
from secateurs.masks import select


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.conv = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)


TOTAL = sum(score.numel() for score in scores().values())


def generator(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def run(given=None, **options):
    given = scores() if given is None else given
    return select(given, weights=given, generator=generator(), **options)
