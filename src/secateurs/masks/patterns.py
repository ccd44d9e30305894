"""Which shapes a mask may have: single entries, N of M, blocks, kernels, filters, channels."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from secateurs.base.registry import Registry, unknown
from secateurs.errors import ArgumentError, UnknownNameError
from secateurs.masks.pieces import PART, PIECE, SERIAL

# Patterns that keep or prune whole groups of entries: what all of them share.


class Grouped(ABC):
    """A pattern that keeps or prunes whole groups of entries; a group's score is the mean over its
    entries.
    """

    __slots__ = ()

    @abstractmethod
    def misfit(self, shape: tuple[int, ...]) -> str:
        """Why the pattern does not fit this shape; empty when it does."""

    @abstractmethod
    def rows(self, tensor: Tensor) -> Tensor:
        """The entries as `(groups, entries per group)`."""

    @abstractmethod
    def spread(self, groups: Tensor, shape: tuple[int, ...]) -> Tensor:
        """One value per group, copied to every entry of the group."""

    def group_scores(self, score: Tensor) -> Tensor:
        """The mean score of each group, in float64, summed in one fixed order on any number of
        threads.
        """
        rows = self.rows(score.detach())
        # The mean and not the sum: layers with larger groups would win every comparison.
        return _row_sums(rows) / rows.shape[1]


def _row_sums(rows: Tensor) -> Tensor:
    """Sums of the rows in float64, bit-equal on any number of threads: no piece is long enough to
    be split.
    """
    # PyTorch splits long sums over threads, and the order of additions would depend on
    # their number. A GPU has an order of its own, whatever the length.
    length = SERIAL if rows.device.type == "cpu" else PART
    if rows.shape[1] <= length:
        parts = torch.split(rows, max(1, length // max(1, rows.shape[1])))
        return torch.cat([part.double().sum(1) for part in parts])
    return torch.stack(
        [sum(_serial_sums(row), rows.new_zeros((), dtype=torch.float64)) for row in rows]
    )


def _serial_sums(row: Tensor) -> Iterator[Tensor]:
    return (part.double().sum() for part in torch.split(row, SERIAL))


# N of each M consecutive entries: the pattern that sparse tensor cores run.


@dataclass(frozen=True, slots=True)
class NM:
    """At most N entries kept of each M consecutive ones along dimension 1, the input side (2:4 is
    what GPUs run fast).

    The budget may ask for less than N/M: then the largest entries among those the pattern allows
    are kept, which is the best choice of that count (a partition matroid: greedy is optimal).
    Without a budget, N/M is kept.

    >>> NM(2, 4)
    NM(n=2, m=4)
    """

    n: int
    m: int

    def __post_init__(self) -> None:
        if not 0 < self.n <= self.m:
            raise ArgumentError(
                f"{self.n}:{self.m} is not an N:M pattern: N must be between 1 and M."
            )

    def misfit(self, shape: tuple[int, ...]) -> str:
        """Why the pattern does not fit this shape; empty when it does."""
        if len(shape) < 2:
            return "has no input dimension"
        return f"has {shape[1]} inputs, which {self.m} does not divide" if shape[1] % self.m else ""

    def runs(self, tensor: Tensor) -> Tensor:
        """The entries as rows of M: `(runs, M)`."""
        # Along the inputs, also of a convolution: that is the dimension sparse tensor
        # cores step along.
        return tensor.movedim(1, -1).reshape(-1, self.m)

    def unrun(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The inverse of `runs`."""
        moved = (shape[0], *shape[2:], shape[1])
        return rows.reshape(moved).movedim(-1, 1).contiguous()

    def eligible(self, score: Tensor, within: Tensor | None = None) -> Tensor:
        """The N largest of every run, as a mask in the score's shape."""
        rows = self.runs(score)
        # Ranking a run compares each entry with each: M² temporaries per entry, hence shorter
        # pieces.
        length = max(1, (PIECE if score.device.type == "cpu" else 4 * PART) // self.m**2)
        fences = iter(() if within is None else torch.split(self.runs(within), length))
        parts = [
            _largest_of_run(row, next(fences, None), self.n) for row in torch.split(rows, length)
        ]
        return self.unrun(torch.cat(parts), tuple(score.shape))

    def __str__(self) -> str:
        return f"{self.n}:{self.m}"


def _largest_of_run(score: Tensor, allowed: Tensor | None, n: int) -> Tensor:
    """Entries that fewer than n allowed entries of their row beat."""
    # An equal entry beats those after it (the rule in masks/topk.py).
    value = score.double()
    value = value if allowed is None else value.masked_fill(~allowed, -torch.inf)
    index = torch.arange(score.shape[1], device=score.device)
    beats = (value[:, None, :] > value[:, :, None]) | (
        (value[:, None, :] == value[:, :, None]) & (index[None, :] < index[:, None])
    )
    kept = beats.sum(-1) < n
    return kept if allowed is None else kept & allowed


# Slices of a weight that are kept or cut whole: kernels, filters, channels.


class Slices(Grouped):
    """The entries that share their indices in some dimensions."""

    __slots__ = ()
    shared: ClassVar[tuple[int, ...]]
    """Dimensions whose indices identify a group."""
    fewest: ClassVar[int]
    """The least number of dimensions a weight must have."""
    lacks: ClassVar[str]
    """The message for a weight with fewer."""

    def misfit(self, shape: tuple[int, ...]) -> str:
        """Why the pattern does not fit this shape; empty when it does."""
        return "" if len(shape) >= self.fewest else self.lacks

    def rows(self, tensor: Tensor) -> Tensor:
        """The entries as `(groups, entries per group)`."""
        groups = math.prod(tensor.shape[dim] for dim in self.shared)
        return tensor.movedim(self.shared, tuple(range(len(self.shared)))).reshape(groups, -1)

    def spread(self, groups: Tensor, shape: tuple[int, ...]) -> Tensor:
        """One value per group, copied to every entry of the group."""
        view = [size if dim in self.shared else 1 for dim, size in enumerate(shape)]
        return groups.reshape(view).expand(shape).contiguous()

    def __str__(self) -> str:
        return type(self).__name__.lower()


@dataclass(frozen=True, slots=True)
class Kernel(Slices):
    """The spatial kernel of one pair of channels: entries `[o, i, ...]` of a convolution weight."""

    shared = (0, 1)
    fewest = 3
    lacks = "has no spatial kernel"


@dataclass(frozen=True, slots=True)
class Filter(Slices):
    """Slices of dimension 0: everything that makes one output channel, or one neuron of a linear
    layer.
    """

    shared = (0,)
    fewest = 1
    lacks = "is a single number"


@dataclass(frozen=True, slots=True)
class Channel(Slices):
    """Slices of dimension 1: everything that reads one input channel."""

    shared = (1,)
    fewest = 2
    lacks = "has no input dimension"


@dataclass(frozen=True, slots=True)
class Block(Grouped):
    """Tiles of `height` outputs × `width` inputs of the weight read as a matrix `(outputs,
    everything else)`.
    """

    height: int
    width: int

    def __post_init__(self) -> None:
        if min(self.height, self.width) < 1:
            raise ArgumentError(f"a block of {self.height} x {self.width} has no entries.")

    def misfit(self, shape: tuple[int, ...]) -> str:
        """Why the pattern does not fit this shape; empty when it does."""
        if len(shape) < 2:
            return "is not a matrix"
        width = math.prod(shape[1:])
        fits = shape[0] % self.height == 0 and width % self.width == 0
        return (
            ""
            if fits
            else (
                f"is a {shape[0]} x {width} matrix, which {self.height} x {self.width} tiles do not"
                " fill"
            )
        )

    def rows(self, tensor: Tensor) -> Tensor:
        """The entries as `(tiles, entries per tile)`, tiles in row-major order."""
        height, width = self.height, self.width
        matrix = tensor.reshape(tensor.shape[0], -1)
        tiles = matrix.reshape(matrix.shape[0] // height, height, matrix.shape[1] // width, width)
        return tiles.transpose(1, 2).reshape(-1, height * width)

    def spread(self, groups: Tensor, shape: tuple[int, ...]) -> Tensor:
        """One value per tile, copied to every entry of the tile."""
        tiles = groups.reshape(shape[0] // self.height, -1)
        wide = tiles.repeat_interleave(self.height, 0).repeat_interleave(self.width, 1)
        return wide.reshape(shape)

    def __str__(self) -> str:
        return f"{self.height}x{self.width}"


@dataclass(frozen=True, slots=True)
class Unstructured:
    """Every entry on its own."""

    def misfit(self, shape: tuple[int, ...]) -> str:
        """Why the pattern does not fit this shape; empty when it does."""
        return ""

    def __str__(self) -> str:
        return "unstructured"


Pattern: TypeAlias = Unstructured | NM | Grouped

PATTERNS: Registry[Pattern] = Registry("pattern")
"""Patterns by name. Any "N:M" ("1:8") and any block "RxC" ("16x1") is understood as well."""
for _pattern in (
    Unstructured(),
    NM(2, 4),
    Block(4, 4),
    Kernel(),
    Filter(),
    Channel(),
):
    PATTERNS.register(str(_pattern))(_pattern)


def pattern_of(pattern: "str | Pattern") -> Pattern:
    """The pattern a name stands for; a pattern stands for itself.

    >>> pattern_of("1:8"), pattern_of("16x1")
    (NM(n=1, m=8), Block(height=16, width=1))
    """
    if isinstance(pattern, Unstructured | NM | Grouped):
        return pattern
    if not isinstance(pattern, str):
        raise ArgumentError(f"{pattern!r} is neither a pattern nor the name of one, such as '2:4'.")
    sizes = re.fullmatch(r"(\d{1,4})([:x])(\d{1,4})", pattern)
    if pattern in PATTERNS or not sizes:
        if pattern not in PATTERNS:
            raise UnknownNameError(unknown("pattern", pattern, [*PATTERNS.names(), "N:M", "RxC"]))
        return PATTERNS[pattern]
    kind: type[NM] | type[Block] = NM if sizes[2] == ":" else Block
    return kind(int(sizes[1]), int(sizes[3]))
