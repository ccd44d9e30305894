"""Pairs of networks and the ways to bound them, for several tests of certificates."""

import torch
from torch import nn

from secateurs.base.random import generator as seeded
from secateurs.proof.problem import read_problem
from tiny_networks import (
    pruned,
    randomize,
    tuned,
)


def problem_of(dense, sparse, x, **options):
    return read_problem(dense, sparse, x[:1], **options)


def pair(seed: int = 0, hidden: int = 6) -> tuple[nn.Module, nn.Module]:
    g = seeded(seed, "plumbing")
    make = nn.Sequential(nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, 2))
    dense = randomize(make, g)
    return dense, tuned(dense, g)


def deep(generator):
    """Four layers of 20 neurons, its pruned copy, and four inputs."""
    layers = [m for _ in range(4) for m in (nn.Linear(20, 20), nn.ReLU())]
    dense = randomize(nn.Sequential(*layers, nn.Linear(20, 3)).double(), generator)
    x = torch.randn(4, 20, generator=generator, dtype=torch.float64)
    return dense, pruned(dense, generator), x
