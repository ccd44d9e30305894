"""The edges of a graph, one by one: where they start and end, and their exact weights."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import torch
from torch import Tensor

Neuron: TypeAlias = tuple[str, int]
"""A node of the graph and the position in its flattened value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """One path: its neurons, the exact product of its weights, where it starts and ends, whether it
    is active.

    Attributes:
        start: The coordinate of the flattened input, or −1 for a path that starts in a bias.
        end: The coordinate of the flattened output.
    """

    neurons: tuple[Neuron, ...]
    product: Fraction
    start: int
    end: int
    active: bool


@dataclass(frozen=True, slots=True)
class Edge:
    """From one neuron to one position of a node, with its exact weight."""

    source: Neuron
    target: int
    weight: Fraction
    active: bool = True


def bases(like: Tensor) -> Iterator[Tensor]:
    """The unit vectors in the shape of a value, one by one."""
    for i in range(like.numel()):
        basis = torch.zeros(like.numel(), dtype=torch.float64)
        basis[i] = 1
        yield basis.reshape(like.shape)
