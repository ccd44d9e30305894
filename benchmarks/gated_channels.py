"""D-Gating: how many channels vanish, what is left of the accuracy, and the milliseconds after
`compact`.

    python benchmarks/gated_channels.py [--model resnet-20] [--strengths 0 0.03 0.1] [--pairs 40]

Fashion-MNIST, all images, eight epochs of batch 128; seed 0; SGD with momentum 0.9 and a cosine
from rate 0.1. A group is all that reads one channel, since batch norm undoes the size of what
writes it. Dense and compacted network are timed in turns in one process; the figures are medians.
`--out` keeps the state of every network before `compact`, for the zoo.
"""

import argparse
import copy
import time
from pathlib import Path
from statistics import median

import torch
from safetensors.torch import save_file

from secateurs.base.random import generator
from secateurs.channels import compact, macs
from secateurs.optim import DGating
from secateurs_lab import data as sets
from secateurs_lab.models import build
from secateurs_lab.train import cosine, evaluate, fit_


def reads_channels(name, weight):
    """Whether a weight has channels to lose; the image's own is not one."""
    return weight.ndim > 1 and weight.shape[1] > 1


def convolution(name, weight):
    """The same among convolutions alone."""
    return weight.ndim == 4 and reads_channels(name, weight)


# The last layer of the ResNet reads what is left anyway; LeNet-5 has its weights in linear layers.
NETWORKS = {"resnet-20": ({"width": 8}, convolution), "lenet-5": ({}, reads_channels)}


def train_gated(name, data, strength, epochs):
    """The trained network, collapsed."""
    options, where = NETWORKS[name]
    start = generator(0, "init")
    model = build(name, in_channels=1, classes=10, size=28, generator=start, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    gating = None
    if strength:
        gating = DGating(
            model, optimizer, strength=strength, depth=2, groups="channel", where=where
        )
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
        gating.collapse_(1e-3)
    return model.eval()


@torch.no_grad()
def time_in_turns(dense, small, x, pairs):
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
    parser.add_argument("--model", choices=sorted(NETWORKS), default="resnet-20")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--strengths", type=float, nargs="*", default=[0, 0.03, 0.1])
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = sets.load("fashion-mnist")
    x = data.test_x[: args.batch]
    head = ["λ", "accuracy %", "channels and neurons", "parameters", "multiplications"]
    head += ["ms", "dense, ms", "processor, ms", "dense, processor, ms"]
    print("| " + " | ".join(head) + " |")
    print("| " + " | ".join("---" for _ in head) + " |", flush=True)
    dense = build(args.model, in_channels=1, classes=10, size=28, **NETWORKS[args.model][0]).eval()
    for strength in args.strengths:
        model = train_gated(args.model, data, strength, args.epochs)
        accuracy = 100 * evaluate(model, data).accuracy
        small = compact(copy.deepcopy(model), x[:2])
        if args.out is not None:
            save_file(model.state_dict(), args.out / f"{args.model}_{strength:g}.safetensors")
        widths = "-".join(str(p.shape[0]) for p in small.parameters() if p.ndim > 1)
        took = time_in_turns(dense, small, x, args.pairs)
        cells = [f"{strength:g}", f"{accuracy:.2f}", widths]
        cells += [f"{sum(p.numel() for p in small.parameters()):,}"]
        cells += [f"{macs(small, x[:1]).dense:,}"]
        cells += [f"{took[name][0]:.2f}" for name in ("small", "dense")]
        cells += [f"{took[name][1]:.2f}" for name in ("small", "dense")]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
