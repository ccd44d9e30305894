"""The numerical studies of Qian & Klabjan (2021), appendix D: Tables 1–3 and the histograms, beside
the printed ones.

Every matrix of a row comes from its own generator (seed and row), so the numbers do not depend on
the number of processes. Norms are those of `theory.spectral_norms` at relative residual 2e-4; the
largest residual is reported. Rows that differ by a factor only (K = 1 and √3, variance 1/d and 3/d)
share their matrices: norms are homogeneous.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Literal

import torch

from secateurs.errors import ArgumentError
from secateurs.study.reproduce.printed import printed_rows
from secateurs.study.reproduce.probabilistic.latala import latala_rows
from secateurs.study.reproduce.probabilistic.quantiles import norm_rows
from secateurs.study.reproduce.probabilistic.rows import Row, Task, law_of, size_of


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
        Task(rows=rows, matrices=matrices, seed=seed) for rows in _grouped(2, size_of)
    ]
    return _spread(norm_rows, tasks, workers)


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
        Task(rows=rows, matrices=matrices, seed=seed) for rows in _grouped(3, law_of)
    ]
    return _spread(latala_rows, tasks, workers)


def reference(table: Literal[1, 2, 3]) -> list[dict[str, str]]:
    """The printed table, as text by column."""
    return printed_rows(f"probabilistic_table{table}.csv")


def _grouped(
    table: Literal[2, 3], key: Callable[[dict[str, str]], tuple[str, ...]]
) -> list[tuple[dict[str, str], ...]]:
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in reference(table):
        groups.setdefault(key(row), []).append(row)
    return [tuple(rows) for rows in groups.values()]


def _spread(
    work: Callable[[Task], list[Row]], tasks: Sequence[Task], workers: int
) -> list[Row]:
    """The rows in print's order; expensive tasks first when processes share the work, so that none
    waits at the end.
    """
    order = sorted(tasks, key=lambda task: -task.cost)
    if workers == 1:
        done = [work(task) for task in order]
    else:
        with ProcessPoolExecutor(
            # Spawned, because a forked process inherits locks of torch's threads; one
            # thread each, because the processes share the cores.
            workers,
            get_context("spawn"),
            torch.set_num_threads,
            (1,),
        ) as pool:
            done = list(pool.map(work, order))
    # Back into print's order: the tasks were sorted by what they cost.
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
