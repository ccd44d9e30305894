"""Rows of Table 2: quantiles of the norms of drawn matrices."""

import math

import numpy as np
import torch

from secateurs.study.reproduce.probabilistic.rows import (
    Cell,
    Row,
    Task,
    Values,
    norms_of,
    printed_at,
    size_of,
    sizes,
)
from secateurs.theory.random_matrices import measured_delta0

LEVELS = (0.95, 0.99, 0.999, 0.9999)


def norm_rows(task: Task) -> list[Row]:
    """The rows of a task of Table 2."""
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


def _norm_row(printed: dict[str, str], norms: Values, residual: float) -> Row:
    rows, columns = int(printed["n1"]), int(printed["n2"])
    spread = norms.std(ddof=1)
    cells = [
        Cell(
            name="mean_norm",
            measured=norms.mean(),
            error=spread / math.sqrt(len(norms)),
            printed=printed_at(printed, "mean_norm"),
        ),
        Cell(
            name="std_norm",
            measured=spread,
            # The standard error of a standard deviation, as for normal values.
            error=spread / math.sqrt(2 * len(norms)),
            printed=printed_at(printed, "std_norm"),
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
                printed=printed_at(printed, f"c0_{tag}"),
            )
        )
        cells.append(
            Cell(
                name=f"delta0_{tag}",
                measured=delta0,
                error=0.0,
                printed=printed_at(printed, f"delta0_{tag}"),
            )
        )
    return Row(
        label=f"{rows}x{columns} K={printed['K']}",
        cells=tuple(cells),
        residual=residual,
    )


def quantile(values: Values, level: float) -> tuple[float, float]:
    """The empirical quantile and its standard error: bootstrap, and for extremes at least that of a
    Gumbel maximum.

    (The bootstrap of a maximum is degenerate: it mostly draws the maximum again.)
    """
    # A fixed seed: the error of a figure is the same every time it is asked for.
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
