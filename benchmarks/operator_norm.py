"""Norms of convolutions: the search beside one SVD per frequency, and beside an earlier version of
itself.

`python benchmarks/operator_norm.py` (seed 0; one thread, then two; writes
results/operator_norm.md). `python benchmarks/operator_norm.py --save FILE` writes the seconds of
the installed version alone: the earlier one's are in results/operator_norm_before.csv. Every case
runs in a process of its own, for its peak memory.

`python benchmarks/operator_norm.py --zeros SRC` runs the cases with zeros around the map,
alternating with the version whose `src` folder is SRC (one thread; writes
results/operator_norm_zeros.md).
"""

import csv
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter, process_time

import torch
from torch import Tensor

RESULTS = Path(__file__).with_name("results")
_PATIENCE = 3.0
BEFORE = RESULTS / "operator_norm_before.csv"
NOTE = (
    "Machine: 2 cores AMD EPYC, no GPU, nothing else running. Wall seconds; MB above the start, at"
    " the peak. Before: commit 09bf904, which left a frequency when an early Ritz value plus its"
    " residual was below the best one."
)
CASES = (
    ("random", 64, 64, 3, 32),
    ("random", 128, 128, 3, 32),
    ("random", 256, 256, 3, 16),
    ("random", 512, 512, 3, 8),
    ("random", 512, 512, 3, 32),
    ("peaked", 512, 512, 3, 32),
    ("1×1", 512, 512, 1, 8),
)
ZEROS = (
    ("random", 16, 16, 3, 16),
    ("random", 16, 16, 3, 32),
    ("random", 64, 64, 3, 8),
    ("random", 64, 64, 3, 32),
    ("random", 128, 128, 3, 16),
    ("random", 256, 256, 3, 14),
    ("random", 512, 512, 3, 7),
    ("random", 512, 512, 3, 16),
    ("random", 512, 512, 3, 32),
    ("peaked", 512, 512, 3, 32),
)
ZEROS_NOTE = (
    "One thread of 2 cores, which were busy with other work; hence processor seconds, the least of"
    " three runs of each version in turn (one run above 3 s). Before: commit 3d7fcc5, whose upper"
    " bound above 128 channels searched all frequencies first, and whose value is a"
    " single-precision Ritz value. Off: against the eigenvalues of W*W, where it has at most 4,096"
    " rows."
)


def draw(kind: str, out: int, inside: int, kernel: int) -> Tensor:
    """Random: all frequencies nearly as loud. Peaked: decaying channels, smooth taps, loudest at
    low frequencies.
    """
    weight = torch.randn(out, inside, kernel, kernel, generator=torch.Generator().manual_seed(0))
    if kind != "peaked":
        return weight
    smooth = torch.nn.functional.avg_pool2d(weight, 3, stride=1, padding=1)
    return smooth / torch.arange(1, inside + 1)[None, :, None, None] ** 0.5


def peak_memory() -> float:
    """MB of this process (Linux); ru_maxrss would begin at the size of the process that started
    this one.
    """
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


def measure(case: int, threads: int) -> list[str]:
    """Value, wall and processor seconds (least of three where they are short), MB above the start
    at the peak.
    """
    from secateurs.theory import conv_operator_norm

    torch.set_num_threads(threads)
    kind, out, inside, kernel, size = (*CASES, *ZEROS)[case]
    padding = "circular" if case < len(CASES) else "zeros"
    weight, times = draw(kind, out, inside, kernel), []
    conv_operator_norm(torch.randn(130, 130, 3, 3), (4, 4), padding=padding)
    start = peak_memory()
    while len(times) < 3 and sum(wall for wall, _ in times) < _PATIENCE:
        wall, processor = perf_counter(), process_time()
        value = conv_operator_norm(weight, (size, size), padding=padding).value
        times.append((perf_counter() - wall, process_time() - processor))
    peak = peak_memory() - start
    return [repr(value), *(f"{seconds:.2f}" for seconds in min(times)), f"{peak:.0f}"]


def exact(case: int) -> tuple[float, float]:
    from secateurs.theory import lemma_7

    kind, out, inside, kernel, size = CASES[case]
    wall = perf_counter()
    return float(lemma_7(draw(kind, out, inside, kernel), (size, size))[0]), perf_counter() - wall


def apart(case: int, threads: int, source: str | None = None) -> list[str]:
    command = [sys.executable, __file__, "--case", str(case), str(threads)]
    environment = (
        os.environ | {"OMP_NUM_THREADS": str(threads)} | ({"PYTHONPATH": source} if source else {})
    )
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    ).stdout.split()


def save(path: Path) -> None:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("case", "value", "wall", "processor", "peak_mb"))
        rows.writerows((case, *apart(case, 1)) for case in range(len(CASES)))


def table() -> list[str]:
    torch.set_num_threads(1)
    with BEFORE.open() as file:
        before = list(csv.DictReader(file))
    lines = [
        "| kernel, channels, map | norm | s before | now | ratio | now, 2 threads | MB before | now"
        " | SVD s | off |"
    ]
    lines += ["|---|---|---|---|---|---|---|---|---|---|"]
    for case, (kind, out, inside, kernel, size) in enumerate(CASES):
        old, (value, wall, _, peak), two = (
            before[case],
            apart(case, 1),
            apart(case, 2),
        )
        svd = ["not run", ""]
        if out * inside * size * size <= 2**24:
            truth, seconds = exact(case)
            svd = [f"{seconds:.1f}", f"{float(value) / truth - 1:+.1e}"]
        ratio = f"{float(old['wall']) / max(float(wall), 0.01):.1f}"
        cells = [
            f"{float(value):.4f}",
            old["wall"],
            wall,
            ratio,
            two[1],
            old["peak_mb"],
            peak,
            *svd,
        ]
        lines.append(
            f"| {kind} {kernel}×{kernel}, {out}×{inside}, {size}×{size} | {' | '.join(cells)} |"
        )
        print(lines[-1], flush=True)
    return lines


def whole(case: int) -> float:
    """‖W‖ from all eigenvalues of W*W, in double precision."""
    kind, out, inside, kernel, size = ZEROS[case]
    weight = draw(kind, out, inside, kernel).double()
    basis = torch.eye(inside * size * size, dtype=torch.float64).reshape(-1, inside, size, size)
    images = torch.cat(
        [
            torch.nn.functional.conv2d(part, weight, padding=1).flatten(1)
            for part in basis.split(256)
        ]
    )
    return float(torch.linalg.eigvalsh(images @ images.T)[-1]) ** 0.5


def zeros_table(source: str) -> list[str]:
    lines = [
        "| kernel, channels, map | norm | processor s before | now | ratio | off before | now |"
    ]
    lines += ["|---|---|---|---|---|---|---|"]
    for case, (kind, out, inside, kernel, size) in enumerate(ZEROS):
        index = len(CASES) + case
        runs = [
            (apart(index, 1, source), apart(index, 1)) for _ in range(1 if out * size > 4096 else 3)
        ]
        olds, news = (min(float(pair[which][2]) for pair in runs) for which in (0, 1))
        offs = ["", ""]
        if inside * size * size <= 2**12:
            truth = whole(case)
            offs = [f"{float(run[0]) / truth - 1:+.1e}" for run in runs[0]]
        cells = [
            f"{float(runs[0][1][0]):.4f}",
            f"{olds:.2f}",
            f"{news:.2f}",
            f"{olds / news:.1f}",
            *offs,
        ]
        lines.append(
            f"| {kind} {kernel}×{kernel}, {out}×{inside}, {size}×{size} | {' | '.join(cells)} |"
        )
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    if "--case" in sys.argv:
        print(*measure(*map(int, sys.argv[2:4])))
    elif "--zeros" in sys.argv:
        head = [
            "# Operator norms of convolutions with zeros around the map",
            "",
            ZEROS_NOTE,
            "",
        ]
        RESULTS.joinpath("operator_norm_zeros.md").write_text(
            "\n".join([*head, *zeros_table(sys.argv[2]), ""])
        )
    elif "--save" in sys.argv:
        save(Path(sys.argv[2]))
    else:
        head = [
            "# Operator norms of circular convolutions",
            "",
            (__doc__ or "").split("\n\n")[1].strip(),
            "",
            NOTE,
            "",
        ]
        RESULTS.joinpath("operator_norm.md").write_text("\n".join([*head, *table(), ""]))


if __name__ == "__main__":
    main()
