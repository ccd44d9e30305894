"""One row of Tables 2 and 3: matrices are drawn, their norms taken, numbers put beside print."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from secateurs import random
from secateurs.theory import spectral_norms
from secateurs.theory.pruning.concentration import measured_delta0

_Array = np.ndarray[tuple[int], np.dtype[np.float64]]
LEVELS = (0.95, 0.99, 0.999, 0.9999)
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
        return self.measured - self.printed

    @property
    def z(self) -> float:
        """Deviation in standard errors; rounding in print counts as a uniform error of ±0.0005."""
        # Print's own sampling error is as large as ours, and a uniform error of ±a has
        # variance a²/3.
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
        return random.generator(
            self.seed, f"table{table}/{'/'.join(list(self.rows[0].values())[:3])}"
        )

    @property
    def cost(self) -> int:
        first = self.rows[0]
        return (
            int(first["d"]) ** 2
            if "d" in first
            else int(first["n1"]) * int(first["n2"])
        )


def size_of(row: dict[str, str]) -> tuple[str, ...]:
    return row["n1"], row["n2"]


def law_of(row: dict[str, str]) -> tuple[str, ...]:
    return row["d"], row["distribution"].partition("(")[0], row["alpha"]


def norm_rows(task: Task) -> list[Row]:
    rows, columns = (int(text) for text in size_of(task.rows[0]))
    source = task.source(2)
    norms, residual = norms_of(
        (torch.rand(n, rows, columns, generator=source) * 2 - 1)
        / math.sqrt(max(rows, columns))
        for n in sizes(task.matrices, rows * columns)
    )
    scales = {"1": 1.0, "sqrt3": math.sqrt(3.0)}
    return [
        _norm_row(printed, norms * scales[printed["K"]], residual)
        for printed in task.rows
    ]


def _norm_row(printed: dict[str, str], norms: _Array, residual: float) -> Row:
    rows, columns = int(printed["n1"]), int(printed["n2"])
    spread = norms.std(ddof=1)
    cells = [
        Cell(
            name="mean_norm",
            measured=norms.mean(),
            error=spread / math.sqrt(len(norms)),
            printed=_at(printed, "mean_norm"),
        ),
        Cell(
            name="std_norm",
            measured=spread,
            # The standard error of a standard deviation, as for normal values.
            error=spread / math.sqrt(2 * len(norms)),
            printed=_at(printed, "std_norm"),
        ),
    ]
    for level in LEVELS:
        tag = f"{level:.4f}".rstrip("0").removeprefix("0.")
        value, error = quantile(norms, level)
        delta0 = measured_delta0(max(rows, columns), level=level)
        cells.append(
            Cell(
                name=f"c0_{tag}",
                measured=value,
                error=error,
                printed=_at(printed, f"c0_{tag}"),
            )
        )
        cells.append(
            Cell(
                name=f"delta0_{tag}",
                measured=delta0,
                error=0.0,
                printed=_at(printed, f"delta0_{tag}"),
            )
        )
    return Row(
        label=f"{rows}x{columns} K={printed['K']}",
        cells=tuple(cells),
        residual=residual,
    )


_VARIANCE = {"normal(0,3/d)": 3.0}
"""Times 1/d; the other laws have variance 1/d."""


def latala_rows(task: Task) -> list[Row]:
    first, d, source = task.rows[0], int(task.rows[0]["d"]), task.source(3)
    second, fourth = (
        torch.zeros(d, d, dtype=torch.float64),
        torch.zeros(d, d, dtype=torch.float64),
    )

    def drawn() -> Iterator[Tensor]:
        for n in sizes(task.matrices, d * d):
            batch = draw(first, n, d, source)
            squares = batch.square()
            second.add_(squares.sum(0))
            fourth.add_(squares.square().sum(0))
            yield batch

    norms, residual = norms_of(drawn())
    second, fourth = second / task.matrices, fourth / task.matrices
    return [
        _latala_cells(row, norms * math.sqrt(v), second * v, fourth * v**2, residual)
        for row in task.rows
        for v in (_VARIANCE.get(row["distribution"], 1.0),)
    ]


def _latala_cells(
    printed: dict[str, str],
    norms: _Array,
    second: Tensor,
    fourth: Tensor,
    residual: float,
) -> Row:
    rows, columns = (float(second.sum(axis).max().sqrt()) for axis in (1, 0))
    quarter = float(fourth.sum() ** 0.25)
    total, mean = rows + columns + quarter, float(norms.mean())
    # One row sum of estimated moments; its maximum over d rows varies less than a single one does.
    spread = float(
        ((fourth.mean() - second.mean() ** 2) * len(second) / len(norms)).sqrt()
    )
    term, norm = spread / (2 * rows), float(norms.std(ddof=1)) / math.sqrt(len(norms))
    constant = mean / total
    errors = {
        "max_row_term": term,
        "max_col_term": term,
        "fourth_moment_term": term / math.sqrt(len(second)),
    }
    errors |= {
        "mean_norm": norm,
        "C": constant * math.hypot(norm / mean, math.sqrt(2) * term / total),
    }
    values = {
        "max_row_term": rows,
        "max_col_term": columns,
        "fourth_moment_term": quarter,
    }
    values |= {"mean_norm": mean, "C": constant}
    cells = (
        Cell(name=n, measured=v, error=errors[n], printed=_at(printed, n))
        for n, v in values.items()
    )
    alpha = "" if printed["alpha"] == "N/A" else f" alpha={printed['alpha']}"
    return Row(
        label=f"d={printed['d']} {printed['distribution']}{alpha}",
        cells=tuple(cells),
        residual=residual,
    )


def draw(
    printed: dict[str, str], count: int, d: int, source: torch.Generator
) -> Tensor:
    if printed["distribution"].startswith("uniform"):
        return (torch.rand(count, d, d, generator=source) * 2 - 1) * math.sqrt(3 / d)
    batch = torch.randn(count, d, d, generator=source) / math.sqrt(d)
    if printed["alpha"] == "N/A":
        return batch
    gone = torch.randint(
        d * d, (count, int(d ** (2 - float(printed["alpha"])))), generator=source
    )
    return batch.view(count, -1).scatter_(1, gone, 0.0).view(count, d, d)


def norms_of(batches: Iterator[Tensor]) -> tuple[_Array, float]:
    found = [spectral_norms(batch, tolerance=RESIDUAL) for batch in batches]
    return torch.cat([f.values for f in found]).double().numpy(), max(
        float(f.residual.max()) for f in found
    )


def quantile(values: _Array, level: float) -> tuple[float, float]:
    """The empirical quantile and its standard error: bootstrap, and for extremes at least that of a
    Gumbel maximum.

    (The bootstrap of a maximum is degenerate: it mostly draws the maximum again.)
    """
    draws = np.random.default_rng(0).integers(len(values), size=(200, len(values)))
    spread = float(np.quantile(values[draws], level, axis=1, method="higher").std())
    # The deviation of a Gumbel maximum of n values: π/√6 · σ/√(2 ln n).
    if len(values) * (1 - level) < 2:
        spread = max(
            spread,
            float(values.std(ddof=1))
            * math.pi
            / math.sqrt(12 * math.log(len(values))),
        )
    return float(np.quantile(values, level, method="higher")), spread


def sizes(matrices: int, entries: int) -> Iterator[int]:
    step = max(1, _CHUNK // entries)
    yield from (min(step, matrices - start) for start in range(0, matrices, step))


def _at(printed: dict[str, str], column: str) -> float:
    return float(printed[column])
