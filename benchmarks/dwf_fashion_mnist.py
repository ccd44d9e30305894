"""The Fashion-MNIST study of deep weight factorization: grow its tables row by row, or write them
out.

python benchmarks/dwf_fashion_mnist.py run [PART OF]        rows PART, PART+OF, … of the grid
(resumable, one thread) python benchmarks/dwf_fashion_mnist.py beyond [PART OF]     the same for
twice the paper's compressions python benchmarks/dwf_fashion_mnist.py table
results/dwf_fashion_mnist.md from both CSV files
"""

import csv
import fcntl
import sys
from pathlib import Path

import torch

from secateurs.study.reproduce.factorization import beyond as factorization_beyond
from secateurs.study.reproduce.factorization import experiment as factorization
from secateurs.study.reproduce.factorization.table import markdown

RESULTS = Path(__file__).parent / "results"
STUDIES = {
    "run": (factorization, RESULTS / "dwf_fashion_mnist.csv"),
    "beyond": (factorization_beyond, RESULTS / "dwf_beyond.csv"),
}


def rows(path: Path) -> list[dict[str, str]]:
    """The rows that are there."""
    if not path.exists():
        return []
    with path.open() as file:
        return list(csv.DictReader(file))


def append(path: Path, row: dict[str, str]) -> None:
    """One line, under a lock: several processes grow the same file."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        writer = csv.DictWriter(file, list(row))
        if path.stat().st_size == 0:
            writer.writeheader()
        writer.writerow(row)


def grow(study: str, part: int, of: int) -> None:
    """Run what is missing, in the order of the grid."""
    torch.set_num_threads(1)
    module, path = STUDIES[study]
    for settings in module.grid()[part::of]:
        wanted = module.key(settings)
        if not any(all(row[name] == value for name, value in wanted.items()) for row in rows(path)):
            row = module.run(settings).flat()
            append(path, row)
            print(row, flush=True)


def main(arguments: list[str]) -> None:
    """Run or write the table."""
    if arguments[:1] and arguments[0] in STUDIES:
        grow(arguments[0], *(int(x) for x in arguments[1:3] or ("0", "1")))
    elif arguments == ["table"]:
        found = {study: rows(path) for study, (_, path) in STUDIES.items()}
        STUDIES["run"][1].with_suffix(".md").write_text(
            markdown(found["run"], beyond=found["beyond"])
        )
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
