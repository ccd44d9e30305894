"""A λ × seed grid as one batched model (`optim.grid`) against the same runs one after the other.

    python benchmarks/factorized_grid.py [--steps 40] [--device cpu]

LeNet-300-100, batch 256, depth 3, random data; prints milliseconds per step and run. Threads: OMP_NUM_THREADS.
"""

import argparse
import time
from itertools import product

import torch
import torch.nn.functional as F

import secateurs as sc
from secateurs.random import generator


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args()
    data = torch.rand(256, 1, 28, 28, device=chosen.device), torch.randint(10, (256,), device=chosen.device)
    print(f"{torch.get_num_threads()} threads, {chosen.device}, {chosen.steps} steps")
    print("| runs | batched ms per step and run | one by one | one by one / batched |\n| --- | --- | --- | --- |")
    for strengths, seeds in (((1e-3,), (0,)), ((1e-3, 2e-3), (0, 1)), ((1e-4, 3e-4, 1e-3, 3e-3), (0, 1, 2, 3))):
        runs = len(strengths) * len(seeds)
        batched = timed(lambda n, s=strengths, e=seeds: together(data, n, s, e), chosen.steps, chosen.device) / runs
        alone = timed(lambda n, s=strengths, e=seeds: apart(data, n, s, e), chosen.steps, chosen.device) / runs
        print(f"| {runs} | {1e3 * batched:.2f} | {1e3 * alone:.2f} | {alone / batched:.2f} |", flush=True)


def together(data, steps, strengths, seeds):
    model = sc.models.build("lenet-300-100", generator=generator(0, "init")).to(data[0].device)
    sc.optim.grid(model, F.cross_entropy, [data] * steps, strengths=strengths, seeds=seeds, lr=0.1)


def apart(data, steps, strengths, seeds):
    for strength, seed in product(strengths, seeds):
        model = sc.models.build("lenet-300-100", generator=generator(0, "init")).to(data[0].device)
        optimizer = sc.optim.FactorizedSGD(
            model.named_parameters(), lr=0.1, momentum=0.9, strength=strength, generator=generator(seed, "factors")
        )
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(data[0]), data[1]).backward()
            optimizer.step()


def timed(run, steps, device):
    """Seconds per step: the difference of two lengths, so that starting costs nothing."""
    run(1)  # the first run of a shape is slower
    seconds = []
    for length in (2, 2 + steps):
        start = time.perf_counter()
        run(length)
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return (seconds[1] - seconds[0]) / steps


if __name__ == "__main__":
    main()
