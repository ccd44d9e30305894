"""Patterns that keep or prune whole groups of entries: what all of them share."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from secateurs.masks.pieces import SERIAL


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
        # The mean and not the sum: layers with larger groups would win every
        # comparison.
        return _row_sums(rows) / rows.shape[1]


def _row_sums(rows: Tensor) -> Tensor:
    """Sums of the rows in float64, bit-equal on any number of threads: no piece is long enough to
    be split.
    """
    # PyTorch splits long sums over threads, and the order of additions would depend on
    # their number.
    if rows.shape[1] <= SERIAL:
        parts = torch.split(rows, max(1, SERIAL // max(1, rows.shape[1])))
        return torch.cat([part.double().sum(1) for part in parts])
    return torch.stack(
        [
            sum(_serial_sums(row), rows.new_zeros((), dtype=torch.float64))
            for row in rows
        ]
    )


def _serial_sums(row: Tensor) -> Iterator[Tensor]:
    return (part.double().sum() for part in torch.split(row, SERIAL))
