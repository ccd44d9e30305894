"""D-Gating on LeNet-5: how many channels vanish, what is left of the accuracy, and the milliseconds
after `compact`.

    python benchmarks/gated_channels.py [--images 10000] [--epochs 6] [--batch 100] [--pairs 40]

Fashion-MNIST, the first `--images` training images, all test images; seed 0; SGD with momentum 0.9
and a cosine from rate 0.05. Dense and compacted network are timed in turns in one process; the
figures are medians.
"""

import argparse
import copy
import time
from statistics import median

import torch

from secateurs import data as sets
from secateurs.channels import compact, macs
from secateurs.models import build
from secateurs.optim import DGating
from secateurs.random import generator
from secateurs.train import cosine, evaluate, fit_


def one(data, strength, epochs):
    """The trained network, collapsed."""
    model = build("lenet-5", in_channels=1, classes=10, size=28, generator=generator(0, "init"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    gating = DGating(model, optimizer, strength=strength, depth=3) if strength else None
    fit_(
        model,
        data,
        optimizer=optimizer,
        length=f"{epochs}ep",
        batch=128,
        schedule=cosine(),
        generator=generator(0, "batches"),
        evaluate_every=0,
        verbose=False,
    )
    if gating is not None:
        gating.collapse_(1e-4)
    return model.eval()


@torch.no_grad()
def in_turns(dense, small, x, pairs):
    """Median milliseconds of both: by the clock, and of the processor."""
    found = {name: ([], []) for name in ("dense", "small")}
    for _ in range(pairs):
        for name, model in (("dense", dense), ("small", small)):
            clock, processor = time.perf_counter(), time.process_time()
            model(x)
            found[name][0].append(1e3 * (time.perf_counter() - clock))
            found[name][1].append(1e3 * (time.process_time() - processor))
    return {name: tuple(map(median, times)) for name, times in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--strengths", type=float, nargs="*", default=[0, 1e-4, 3e-4, 1e-3, 3e-3])
    args = parser.parse_args()
    torch.set_num_threads(1)
    whole = sets.load("fashion-mnist")
    data = whole.first(args.images, len(whole.test_y))
    x = data.test_x[: args.batch]
    head = ["λ", "accuracy %", "channels and neurons", "multiplications", "ms", "dense, ms"]
    head += ["processor, ms", "dense, processor, ms"]
    print("| " + " | ".join(head) + " |")
    print("| " + " | ".join("---" for _ in head) + " |")
    dense = one(data, 0.0, args.epochs)
    for strength in args.strengths:
        model = dense if not strength else one(data, strength, args.epochs)
        accuracy = 100 * evaluate(model, data).accuracy
        small = compact(copy.deepcopy(model), x[:2])
        widths = "-".join(str(p.shape[0]) for p in small.parameters() if p.ndim > 1)
        took = in_turns(dense, small, x, args.pairs)
        cells = [f"{strength:g}", f"{accuracy:.2f}", widths, f"{macs(small, x[:1]).dense:,}"]
        cells += [f"{took[name][0]:.2f}" for name in ("small", "dense")]
        cells += [f"{took[name][1]:.2f}" for name in ("small", "dense")]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
