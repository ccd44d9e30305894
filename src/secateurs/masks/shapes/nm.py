"""N of each M consecutive entries: the pattern that sparse tensor cores run."""

from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.masks.pieces import PIECE


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
                f"{self.n}:{self.m} is no N:M pattern: N must be between 1 and M."
            )

    def misfit(self, shape: tuple[int, ...]) -> str:
        """Why the pattern does not fit this shape; empty when it does."""
        if len(shape) < 2:
            return "has no input dimension"
        return (
            f"has {shape[1]} inputs, which {self.m} does not divide"
            if shape[1] % self.m
            else ""
        )

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
        """The N largest of every run (earlier ones first among equals), as a mask in the score's
        shape.
        """
        rows = self.runs(score)
        allowed = (
            torch.ones_like(rows, dtype=torch.bool)
            if within is None
            else self.runs(within)
        )
        # Ranking a run compares each entry with each: M² temporaries an entry, hence
        # shorter pieces.
        length = max(1, PIECE // self.m**2)
        parts = zip(
            torch.split(rows, length), torch.split(allowed, length), strict=True
        )
        return self.unrun(
            torch.cat([_largest_of_run(row, ok, self.n) for row, ok in parts]),
            tuple(score.shape),
        )

    def __str__(self) -> str:
        return f"{self.n}:{self.m}"


def _largest_of_run(score: Tensor, allowed: Tensor, n: int) -> Tensor:
    """Entries that fewer than n allowed entries of their row beat; an equal entry beats those after
    it.
    """
    # Comparing all pairs of a short run is exact about ties, which a sort is only if it
    # is stable.
    value = score.double().masked_fill(~allowed, -torch.inf)
    index = torch.arange(score.shape[1], device=score.device)
    beats = (value[:, None, :] > value[:, :, None]) | (
        (value[:, None, :] == value[:, :, None]) & (index[None, :] < index[:, None])
    )
    return (beats.sum(-1) < n) & allowed
