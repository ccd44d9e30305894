"""Are the papers' experiments as fast on the one training loop as they were on loops of their own?

    git worktree add /tmp/before a86cd39^
    OMP_NUM_THREADS=1 python benchmarks/study_before.py /tmp/before/src [job ...]

a86cd39 is the commit that put the weight-factorization experiments on `train.fit_`. Each job runs
in a process of its own with the sources of then and of now, in turns, three times each; a short run
of the same kind comes first, so that what Python imports once does not count. The best of each.
"""

import os
import subprocess
import sys
from pathlib import Path

FACTORIZATION = "from secateurs.papers.factorization.plans import *"
SKETCHING = (
    "from dataclasses import replace\n"
    "from secateurs.data import load\n"
    "from secateurs.papers.sketching import *\n"
    "def cell(epochs):\n"
    "    length, drops = f'{epochs}ep', (f'{epochs // 2}ep',)\n"
    "    run(replace(SMALL, length=length, drops=drops), load('digits'),\n"
    "        'snip-supervised', 0.1, 0)"
)
JOBS = {
    "LeNet-300-100, dense, 4 epochs": (
        FACTORIZATION,
        "run(FactorizationSettings(method='dense', epochs={}))",
        (1, 4),
    ),
    "LeNet-300-100, factorized, λ 0.002, 6 epochs": (
        FACTORIZATION,
        "run(FactorizationSettings(strength=2e-3, epochs={}))",
        (1, 6),
    ),
    "LeNet-300-100, 50 times fewer weights from the start (SNIP), 4 epochs": (
        FACTORIZATION,
        "run(FactorizationSettings(method='snip', prune_to=50.0, epochs={}))",
        (1, 4),
    ),
    "a cell of the sketching tables, digits, 100 epochs": (
        SKETCHING,
        "cell({})",
        (2, 100),
    ),
}
TIMED = """
import torch
from time import perf_counter, process_time
torch.set_num_threads(1)
{imports}
{short}
wall, own = perf_counter(), process_time()
{job}
print("took", perf_counter() - wall, process_time() - own)
"""


def took(sources: Path, job: str) -> tuple[float, float]:
    """Seconds of wall and of processor time."""
    imports, call, (few, many) = JOBS[job]
    code = TIMED.format(imports=imports, short=call.format(few), job=call.format(many))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(sources)},
        capture_output=True,
        text=True,
        check=True,
    )
    wall, own = done.stdout.rpartition("took ")[2].split()
    return float(wall), float(own)


def main(before: Path, jobs: list[str]) -> None:
    """A line for each job."""
    now = Path(__file__).parent.parent / "src"
    for job in jobs or JOBS:
        name = next(each for each in JOBS if job in each)
        pairs = [(took(before, name), took(now, name)) for _ in range(3)]
        best = [[min(pair[side][kind] for pair in pairs) for kind in (0, 1)] for side in (0, 1)]
        (old, old_own), (new, new_own) = best
        print(
            f"{name}: {old:.2f} s then, {new:.2f} s now, {100 * (new / old - 1):+.1f} %; "
            f"processor time {old_own:.2f} and {new_own:.2f} s, "
            f"{100 * (new_own / old_own - 1):+.1f} %",
            flush=True,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
