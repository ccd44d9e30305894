"""Rows of Table 3: the terms of Lemma 4 from drawn matrices, and the constant that fits."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from secateurs.study.reproduce.probabilistic.rows import (
    Cell,
    Row,
    Task,
    Values,
    norms_of,
    printed_at,
    sizes,
)

_VARIANCE = {"normal(0,3/d)": 3.0}
"""Times 1/d; the other laws have variance 1/d."""


def latala_rows(task: Task) -> list[Row]:
    """The rows of a task of Table 3."""
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
    norms: Values,
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
        Cell(name=n, measured=v, error=errors[n], printed=printed_at(printed, n))
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
    """So many d × d matrices of a row's law; α zeroes some positions."""
    if printed["distribution"].startswith("uniform"):
        return (torch.rand(count, d, d, generator=source) * 2 - 1) * math.sqrt(3 / d)
    batch = torch.randn(count, d, d, generator=source) / math.sqrt(d)
    if printed["alpha"] == "N/A":
        return batch
    # With replacement, as print says: some positions
    # are drawn twice and fewer are zero.
    gone = torch.randint(
        d * d, (count, int(d ** (2 - float(printed["alpha"])))), generator=source
    )
    return batch.view(count, -1).scatter_(1, gone, 0.0).view(count, d, d)
