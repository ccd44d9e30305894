"""The Gaussian initialisation of a whole ResNet-18: how long it takes, and whether the products are
Gaussian.

python benchmarks/gaussian_start.py      prints a table (Markdown): depths 2, 3, 4, the tail
corrected or (erratum) not
"""

import math
import time

import torch

from experiments.factorization.gaussian_start import moments
from secateurs.base.random import generator
from secateurs.optim import FactorizedSGD
from secateurs_lab import models


def products(depth):
    """Seconds to make the optimizer, and all weights of the convolutions and the linear layer in
    units of their σ.
    """
    model = models.build("resnet-18", generator=generator(0, "model"))
    matrices = [p for p in model.parameters() if p.ndim > 1]
    start = time.perf_counter()
    FactorizedSGD(
        matrices,
        lr=0.1,
        depth=depth,
        strength=1e-4,
        init="gaussian",
        generator=generator(depth, "factors"),
    )
    seconds = time.perf_counter() - start
    return seconds, torch.cat(
        [(p.detach() * math.sqrt(p[0].numel())).flatten().double() for p in matrices]
    )


def main():
    torch.set_num_threads(1)
    cut = moments(1, corrected=False)
    print(
        f"As printed (k = 1, no correction): standard deviation {cut.deviation:.4f}, kurtosis"
        f" {cut.kurtosis:.3f}.\n"
    )
    print("| depth | weights | s | mean | standard deviation | ± | kurtosis | ± |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for depth in (2, 3, 4):
        seconds, w = products(depth)
        n, deviation = len(w), float(w.std())
        kurtosis = float((w - w.mean()).pow(4).mean()) / deviation**4
        errors = (1 / math.sqrt(2 * n), math.sqrt(24 / n))
        cells = (
            f"{float(w.mean()):+.5f}",
            f"{deviation:.5f}",
            f"{errors[0]:.5f}",
            f"{kurtosis:.4f}",
            f"{errors[1]:.4f}",
        )
        print(
            "|",
            " | ".join((str(depth), f"{n:,}", f"{seconds:.1f}", *cells)),
            "|",
            flush=True,
        )


if __name__ == "__main__":
    main()
