"""One row of Tables 2 and 3: matrices are drawn, their norms taken, numbers put beside print."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from secateurs import random
from secateurs.theory import spectral_norms

Values = np.ndarray[tuple[int], np.dtype[np.float64]]
RESIDUAL = 2e-4
# Print gives three decimals.
_ROUNDING = 0.0005
# Entries of the matrices drawn at a time, which bounds the memory.
_CHUNK = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One number beside the printed one. `error`: Monte-Carlo standard error of the measured
    number.

    The printed number has the same error and is rounded: `z` is the deviation over the standard
    error of the difference.
    """

    name: str
    measured: float
    error: float
    printed: float

    @property
    def deviation(self) -> float:
        """Ours less print's."""
        return self.measured - self.printed

    @property
    def z(self) -> float:
        """Deviation in standard errors; rounding in print counts as a uniform error of ±0.0005."""
        # Print's own sampling error is as large as ours, and
        # a uniform error of ±a has variance a²/3.
        spread = math.sqrt(2 * self.error**2 + _ROUNDING**2 / 3)
        return self.deviation / spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a table: what it is about, its numbers, and the largest residual of its norms."""

    label: str
    cells: tuple[Cell, ...]
    residual: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Rows that differ by a factor only: norms are homogeneous, so they share their matrices."""

    rows: tuple[dict[str, str], ...]
    matrices: int
    seed: int

    def source(self, table: int) -> torch.Generator:
        """The generator of these rows, of no others: equal whoever computes them."""
        return random.generator(
            self.seed, f"table{table}/{'/'.join(list(self.rows[0].values())[:3])}"
        )

    @property
    def cost(self) -> int:
        """Entries of a matrix: what the time of a task grows with."""
        first = self.rows[0]
        return (
            int(first["d"]) ** 2
            if "d" in first
            else int(first["n1"]) * int(first["n2"])
        )


def size_of(row: dict[str, str]) -> tuple[str, ...]:
    """What rows of Table 2 share their matrices by."""
    return row["n1"], row["n2"]


def law_of(row: dict[str, str]) -> tuple[str, ...]:
    """What rows of Table 3 share their matrices by."""
    return row["d"], row["distribution"].partition("(")[0], row["alpha"]


def norms_of(batches: Iterator[Tensor]) -> tuple[Values, float]:
    """Spectral norms of all matrices, and the largest residual among them."""
    found = [spectral_norms(batch, tolerance=RESIDUAL) for batch in batches]
    return torch.cat([f.values for f in found]).double().numpy(), max(
        float(f.residual.max()) for f in found
    )


def sizes(matrices: int, entries: int) -> Iterator[int]:
    """How many matrices are drawn at a time, until all are."""
    step = max(1, _CHUNK // entries)
    yield from (min(step, matrices - start) for start in range(0, matrices, step))


def printed_at(printed: dict[str, str], column: str) -> float:
    """A printed number."""
    return float(printed[column])
