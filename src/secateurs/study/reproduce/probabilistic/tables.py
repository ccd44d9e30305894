"""The numerical studies of Qian & Klabjan (2021), appendix D: Tables 1–3 and the histograms, beside
the printed ones.

Every matrix of a row comes from its own generator (seed and row), so the numbers do not depend on
the number of processes. Norms are those of `theory.spectral_norms` at relative residual 2e-4; the
largest residual is reported. Rows that differ by a factor only (K = 1 and √3, variance 1/d and 3/d)
share their matrices: norms are homogeneous.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from secateurs import random
from secateurs.errors import ArgumentError
from secateurs.study.reproduce.printed import printed_rows
from secateurs.theory import spectral_norms
from secateurs.theory.pruning.concentration import measured_delta0

_Array = np.ndarray[tuple[int], np.dtype[np.float64]]
LEVELS = (0.95, 0.99, 0.999, 0.9999)
RESIDUAL = 2e-4
_ROUNDING = 0.0005
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
        spread = math.sqrt(2 * self.error**2 + _ROUNDING**2 / 3)
        return self.deviation / spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a table: what it is about, its numbers, and the largest residual of its norms."""

    label: str
    cells: tuple[Cell, ...]
    residual: float


def norm_constants(
    *, matrices: int = 1_000, seed: int = 0, workers: int = 1
) -> list[Row]:
    """Table 2: quantiles of ‖B‖₂ for n1×n2 matrices uniform on ±K/√n; δ0 follows from the level
    alone.

    1,000 matrices cannot show a 99.99 % quantile: print's is the largest norm seen, and so is this
    one's.
    """
    _check(matrices, workers)
    tasks = [
        _Task(rows=rows, matrices=matrices, seed=seed) for rows in _grouped(2, _size)
    ]
    return _spread(_norm_rows, tasks, workers)


def latala_constants(
    *, matrices: int = 500, seed: int = 0, workers: int = 1
) -> list[Row]:
    """Table 3: the smallest C of Lemma 4 that fits, with the moments estimated from the matrices as
    in print.

    (Estimated row sums, then their maximum: the terms come out above their true values 1, 1 and so
    on. The rows with α zero ⌊d^{2−α}⌋ positions drawn with replacement and keep the rest: print
    says this is the situation of eq. (19), which is about the removed part. Both are in
    docs/errata.md.)
    """
    _check(matrices, workers)
    tasks = [
        _Task(rows=rows, matrices=matrices, seed=seed) for rows in _grouped(3, _law)
    ]
    return _spread(_latala_rows, tasks, workers)


def reference(table: Literal[1, 2, 3]) -> list[dict[str, str]]:
    """The printed table, as text by column."""
    return printed_rows(f"probabilistic_table{table}.csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
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


def _grouped(
    table: Literal[2, 3], key: Callable[[dict[str, str]], tuple[str, ...]]
) -> list[tuple[dict[str, str], ...]]:
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in reference(table):
        groups.setdefault(key(row), []).append(row)
    return [tuple(rows) for rows in groups.values()]


def _size(row: dict[str, str]) -> tuple[str, ...]:
    return row["n1"], row["n2"]


def _law(row: dict[str, str]) -> tuple[str, ...]:
    return row["d"], row["distribution"].partition("(")[0], row["alpha"]


def _norm_rows(task: _Task) -> list[Row]:
    rows, columns = (int(text) for text in _size(task.rows[0]))
    source = task.source(2)
    norms, residual = _norms(
        (torch.rand(n, rows, columns, generator=source) * 2 - 1)
        / math.sqrt(max(rows, columns))
        for n in _sizes(task.matrices, rows * columns)
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
            error=spread / math.sqrt(2 * len(norms)),
            printed=_at(printed, "std_norm"),
        ),
    ]
    for level in LEVELS:
        tag = f"{level:.4f}".rstrip("0").removeprefix("0.")
        value, error = _quantile(norms, level)
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


def _latala_rows(task: _Task) -> list[Row]:
    first, d, source = task.rows[0], int(task.rows[0]["d"]), task.source(3)
    second, fourth = (
        torch.zeros(d, d, dtype=torch.float64),
        torch.zeros(d, d, dtype=torch.float64),
    )

    def drawn() -> Iterator[Tensor]:
        for n in _sizes(task.matrices, d * d):
            batch = _draw(first, n, d, source)
            squares = batch.square()
            second.add_(squares.sum(0))
            fourth.add_(squares.square().sum(0))
            yield batch

    norms, residual = _norms(drawn())
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


def _draw(
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


def _norms(batches: Iterator[Tensor]) -> tuple[_Array, float]:
    found = [spectral_norms(batch, tolerance=RESIDUAL) for batch in batches]
    return torch.cat([f.values for f in found]).double().numpy(), max(
        float(f.residual.max()) for f in found
    )


def _quantile(values: _Array, level: float) -> tuple[float, float]:
    """The empirical quantile and its standard error: bootstrap, and for extremes at least that of a
    Gumbel maximum.

    (The bootstrap of a maximum is degenerate: it mostly draws the maximum again.)
    """
    draws = np.random.default_rng(0).integers(len(values), size=(200, len(values)))
    spread = float(np.quantile(values[draws], level, axis=1, method="higher").std())
    if len(values) * (1 - level) < 2:
        spread = max(
            spread,
            float(values.std(ddof=1)) * math.pi / math.sqrt(12 * math.log(len(values))),
        )
    return float(np.quantile(values, level, method="higher")), spread


def _sizes(matrices: int, entries: int) -> Iterator[int]:
    step = max(1, _CHUNK // entries)
    yield from (min(step, matrices - start) for start in range(0, matrices, step))


def _spread(
    work: Callable[[_Task], list[Row]], tasks: Sequence[_Task], workers: int
) -> list[Row]:
    """The rows in print's order; expensive tasks first when processes share the work, so that none
    waits at the end.
    """
    order = sorted(tasks, key=lambda task: -task.cost)
    if workers == 1:
        done = [work(task) for task in order]
    else:
        with ProcessPoolExecutor(
            workers, get_context("spawn"), torch.set_num_threads, (1,)
        ) as pool:
            done = list(pool.map(work, order))
    places = [
        reference(2 if "n1" in tasks[0].rows[0] else 3).index(row)
        for task in order
        for row in task.rows
    ]
    rows = [row for rows in done for row in rows]
    return [
        row
        for _, row in sorted(zip(places, rows, strict=True), key=lambda pair: pair[0])
    ]


def _check(matrices: int, workers: int) -> None:
    if matrices < 2 or workers < 1:
        raise ArgumentError(
            f"matrices = {matrices} and workers = {workers}: at least two matrices, one process."
        )


def _at(printed: dict[str, str], column: str) -> float:
    return float(printed[column])
