"""A λ × seed grid as one batched model against one run beside the other, both by `optim.grid`; and
what it chooses.

    python benchmarks/factorized_grid.py [--steps 40] [--device cpu]

Two-layer nets of several widths and LeNet-300-100, depth 3, random data; prints milliseconds per
step and run. Threads: OMP_NUM_THREADS.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn

import secateurs_lab as lab
from secateurs.base.random import generator
from secateurs_lab.train.sweep import pays

GRIDS = {
    1: ((1e-3,), (0,)),
    4: ((1e-3, 2e-3), (0, 1)),
    16: ((1e-4, 3e-4, 1e-3, 3e-3), (0, 1, 2, 3)),
}


def small(width):
    return nn.Sequential(nn.Flatten(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def lenet():
    return lab.models.build("lenet-300-100", generator=generator(0, "init"))


NETS = {f"{w}-{w}-10": (lambda w=w: small(w), (w,)) for w in (10, 30, 60, 100, 200)}
NETS["LeNet-300-100"] = lenet, (1, 28, 28)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args()
    print(
        f"{torch.get_num_threads()} threads, {chosen.device}, {chosen.steps} steps, ms per step and"
        " run\n"
    )
    print("| net | weights | batch | runs | batched | one by one | one by one / batched | chosen |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, (build, shape) in NETS.items():
        for batch in (32, 256):
            for runs in GRIDS:
                row(name, build, shape, batch, runs, chosen)


def row(name, build, shape, batch, runs, chosen):
    model = build().to(chosen.device)
    data = (
        torch.rand(batch, *shape, device=chosen.device),
        torch.randint(10, (batch,), device=chosen.device),
    )
    spent = {
        way: (
            timed(
                lambda n, way=way: train(model, data, n, runs, way),
                chosen.steps,
                chosen.device,
            )
            / runs
        )
        for way in (True, False)
    }
    weights = sum(p.numel() for p in model.parameters())
    ratio = spent[False] / spent[True]
    figures = f"{1e3 * spent[True]:.3f} | {1e3 * spent[False]:.3f} | {ratio:.2f}"
    way = "batched" if pays(model, runs) else "one by one"
    print(f"| {name} | {weights:,} | {batch} | {runs} | {figures} | {way} |", flush=True)


def train(model, data, steps, runs, batched):
    strengths, seeds = GRIDS[runs]
    lab.train.grid(
        model,
        F.cross_entropy,
        [data] * steps,
        strengths=strengths,
        seeds=seeds,
        lr=0.1,
        batched=batched,
    )


def timed(run, steps, device):
    """Seconds per step: the difference of two lengths, so that starting costs nothing; the least of
    three.
    """
    run(1)  # the first run of a shape is slower
    seconds = []
    for _ in range(3):
        taken = []
        for length in (2, 2 + steps):
            start = time.perf_counter()
            run(length)
            if device != "cpu":
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - start)
        seconds.append((taken[1] - taken[0]) / steps)
    return min(seconds)


if __name__ == "__main__":
    main()
