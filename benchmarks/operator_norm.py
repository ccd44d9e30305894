"""Norms of circular convolutions: Gram matrices and Lanczos beside one SVD per frequency.

`python benchmarks/operator_norm.py` (one thread, seed 0; writes results/operator_norm.md).
"""

from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

import torch

from secateurs.theory import conv_operator_norm, lemma_7

CASES = ((64, 64, 3, 32), (128, 128, 3, 32), (256, 256, 3, 16), (512, 512, 3, 8), (512, 512, 3, 32))


def timed(work: Callable[[], float]) -> tuple[float, float, float]:
    """Value, wall seconds, processor seconds."""
    wall, processor = perf_counter(), process_time()
    value = work()
    return value, perf_counter() - wall, process_time() - processor


def main() -> None:
    torch.set_num_threads(1)
    lines = [
        "# Operator norms of circular convolutions",
        "",
        "`python benchmarks/operator_norm.py`, one thread, seed 0.",
    ]
    lines += ["Seconds: wall / processor. The SVD column transforms and decomposes every frequency.", ""]
    lines += ["| out×in, kernel, map | norm | seconds | SVD seconds | relative difference |", "|---|---|---|---|---|"]
    for out, inside, kernel, size in CASES:
        weight = torch.randn(out, inside, kernel, kernel, generator=torch.Generator().manual_seed(0))
        value, wall, processor = timed(lambda w=weight, n=size: conv_operator_norm(w, (n, n)).value)
        cells = ["not run", ""]
        if out * inside * size * size <= 2**24:
            exact, slow, slower = timed(lambda w=weight, n=size: float(lemma_7(w, (n, n))[0]))
            cells = [f"{slow:.1f} / {slower:.1f}", f"{abs(value / exact - 1):.1e}"]
        label = f"{out}×{inside}, {kernel}×{kernel}, {size}×{size}"
        lines.append(f"| {label} | {value:.4f} | {wall:.2f} / {processor:.2f} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    Path(__file__).with_name("results").joinpath("operator_norm.md").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
