"""Tables 2 and 3 of Qian & Klabjan (2021) in full: `python benchmarks/probabilistic_tables.py
[--workers 2]`.

Writes results/probabilistic_table2.csv and results/probabilistic_table3.csv, and prints how far
they are from the paper's.
"""

import argparse
import csv
import resource
from pathlib import Path
from time import perf_counter

import torch

from experiments.probabilistic import NormRow, latala_constants, norm_constants

RESULTS = Path(__file__).with_name("results")


def write(name: str, rows: list[NormRow]) -> None:
    """Every number beside the printed one, with its Monte-Carlo error and the deviation in standard
    errors.
    """
    with (RESULTS / f"{name}.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["row", "quantity", "measured", "mc_error", "printed", "deviation", "z"])
        for row in rows:
            for cell in row.cells:
                numbers = (
                    cell.measured,
                    cell.error,
                    cell.printed,
                    cell.deviation,
                    cell.z,
                )
                table.writerow([row.label, cell.name, *(f"{value:.4g}" for value in numbers)])


def summary(rows: list[NormRow]) -> list[str]:
    names = list(dict.fromkeys(cell.name for row in rows for cell in row.cells))
    lines = [
        "| quantity | largest deviation | largest Monte-Carlo error | largest \\|z\\| |",
        "|---|---|---|---|",
    ]
    for name in names:
        cells = [cell for row in rows for cell in row.cells if cell.name == name]
        deviation, error, z = (
            max(abs(v) for v in vs)
            for vs in zip(*((c.deviation, c.error, c.z) for c in cells), strict=True)
        )
        lines.append(f"| {name} | {deviation:.4f} | {error:.4f} | {z:.1f} |")
    return lines


def _processor() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    workers = parser.parse_args().workers
    torch.set_num_threads(1)
    start = perf_counter()
    table2 = norm_constants(workers=workers)
    middle = perf_counter()
    table3 = latala_constants(workers=workers)
    seconds = (middle - start, perf_counter() - middle)
    write("probabilistic_table2", table2)
    write("probabilistic_table3", table3)
    residual = max(row.residual for row in (*table2, *table3))
    print(
        f"Table 2 {seconds[0]:.1f} s, Table 3 {seconds[1]:.1f} s, processor time of all processes"
        f" {_processor():.1f} s; largest relative residual of a norm {residual:.1e}."
    )
    print("\n".join(["", "Table 2", *summary(table2), "", "Table 3", *summary(table3)]))


if __name__ == "__main__":
    main()
