"""The Fashion-MNIST study of deep weight factorization: grow the table row by row, or write it out.

python benchmarks/dwf_fashion_mnist.py run [PART OF]     rows PART, PART+OF, … of the grid (resumable, one thread)
python benchmarks/dwf_fashion_mnist.py table             results/dwf_fashion_mnist.md from the CSV file
"""

import csv
import fcntl
import sys
from pathlib import Path

import torch

from secateurs.study.reproduce.factorization import grid, key, run
from secateurs.study.reproduce.factorization_table import markdown

CSV = Path(__file__).parent / "results" / "dwf_fashion_mnist.csv"


def rows() -> list[dict[str, str]]:
    """The rows that are there."""
    if not CSV.exists():
        return []
    with CSV.open() as file:
        return list(csv.DictReader(file))


def append(row: dict[str, str]) -> None:
    """One line, under a lock: several processes grow the same file."""
    with CSV.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        writer = csv.DictWriter(file, list(row))
        if CSV.stat().st_size == 0:
            writer.writeheader()
        writer.writerow(row)


def grow(part: int, of: int) -> None:
    """Run what is missing, in the order of the grid."""
    torch.set_num_threads(1)
    for settings in grid()[part::of]:
        wanted = key(settings)
        if not any(all(row[name] == value for name, value in wanted.items()) for row in rows()):
            row = run(settings).flat()
            append(row)
            print(row, flush=True)


def main(arguments: list[str]) -> None:
    """Run or write the table."""
    if arguments[:1] == ["run"]:
        grow(*(int(x) for x in arguments[1:3] or ("0", "1")))
    elif arguments == ["table"]:
        CSV.with_suffix(".md").write_text(markdown(rows()))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
