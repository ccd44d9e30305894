"""Does `target_sparsity` end where it was asked to? LeNet-300-100 on Fashion-MNIST, several depths
and seeds.

python benchmarks/target_sparsity.py [EPOCHS]      prints a table (Markdown); one thread
"""

import math
import sys
import time

import torch
import torch.nn.functional as F

from secateurs.base.random import generator
from secateurs.optim import FactorizedSGD
from secateurs_lab import data, models
from secateurs_lab.train import flushed_denormals

TARGETS = (0.9, 0.95, 0.99, 0.995)
CASES = ((3, 0), (3, 1), (3, 2), (2, 0), (4, 0))
BATCH = 256


def train(images, *, target, depth, seed, epochs):
    """Ordinary loop, cosine to 0; the report of the collapse, test accuracy before and after it,
    the largest λ.
    """
    model = models.build("lenet-300-100", generator=generator(seed, "model"))
    steps = epochs * math.ceil(len(images.train_x) / BATCH)
    options = {
        "lr": 0.5,
        "momentum": 0.9,
        "depth": depth,
        "strength": 3e-4,
        "steps": steps,
        "target_sparsity": target,
    }
    optimizer = FactorizedSGD(model.parameters(), generator=generator(seed, "factors"), **options)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draw, x = generator(seed, "order"), images.train_x.flatten(1)
    for _ in range(epochs):
        for chosen in torch.randperm(len(x), generator=draw).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(x[chosen]), images.train_y[chosen]).backward()
            optimizer.step()
            scheduler.step()
    before = accuracy(model, images)
    return optimizer.collapse_(), before, accuracy(model, images)


@torch.no_grad()
def accuracy(model, images):
    return 100 * float((model(images.test_x.flatten(1)).argmax(1) == images.test_y).float().mean())


def main(epochs):
    torch.set_num_threads(1)
    images = data.load("fashion-mnist")
    print(f"{epochs} epochs, batch {BATCH}, rate 0.5, start λ = 3e-4, one thread\n")
    print("| depth | seed | asked % | got % | off | accuracy before collapse | after | s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    worst = 0.0
    for depth, seed in CASES:
        for target in TARGETS:
            start = time.perf_counter()
            with flushed_denormals():
                collapsed, before, after = train(
                    images, target=target, depth=depth, seed=seed, epochs=epochs
                )
            off = 100 * (collapsed.sparsity - target)
            worst = max(worst, abs(off))
            cells = (
                f"{100 * target:g}",
                f"{100 * collapsed.sparsity:.3f}",
                f"{off:+.3f}",
                f"{before:.2f}",
            )
            seconds = time.perf_counter() - start
            print(
                "|",
                " | ".join((str(depth), str(seed), *cells, f"{after:.2f}", f"{seconds:.0f}")),
                "|",
                flush=True,
            )
    print(f"\nWorst distance: {worst:.3f} points.")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
