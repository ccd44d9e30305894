"""What comparing every model with its own graph costs: first calls, twins, repeated calls.

    python benchmarks/comparison.py [--repeats 15]

Milliseconds of processor time, one thread: the first call of a program in a process that has traced
something before, the first call of a twin (another object, other weights, the same program; the
median of three), and a call of the same model again (the best of the repeats). Run it against two
versions of the package by PYTHONPATH to see what changed.
"""

import argparse
import copy
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

import secateurs as sc
from secateurs.ship.c_source import c_source

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from architectures import resnet18


def mlp():
    sizes = [784, 300, 100, 10]
    layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


def certified(model, x):
    other = copy.deepcopy(model)
    with torch.no_grad():
        next(other.parameters()).mul_(0.9)
    return lambda: sc.certify(model, other, box=(x, x + 1e-3), methods="interval", restarts=0)


MODELS = {
    "LeNet-300-100": (mlp, torch.zeros(1, 784)),
    "ResNet-18, 32×32": (resnet18, torch.zeros(1, 3, 32, 32)),
    "ResNet-18, 224×224": (resnet18, torch.zeros(1, 3, 224, 224)),
}
ASKED = {
    "capture": lambda m, x: lambda: sc.capture(m, x),
    "macs": lambda m, x: lambda: sc.macs(m, x),
    "path_norm": lambda m, x: lambda: sc.path_norm(m, x),
    "certify": certified,
    "compact": lambda m, x: lambda: sc.compact(m, x),
    "score (synflow)": lambda m, x: lambda: sc.score(m, "synflow", example=x),
    "c_source": lambda m, x: lambda: c_source(m, x),
}


def taken(call):
    start = time.process_time()
    call()
    return 1e3 * (time.process_time() - start)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--models", nargs="*", default=[*MODELS])
    parser.add_argument("--functions", nargs="*", default=[*ASKED])
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | function | first | a twin | again |\n| --- " * 1 + "| --- " * 4 + "|")
    for name in args.models:
        build, x = MODELS[name]
        torch.manual_seed(0)
        # Loads the tracer, which is no cost of this model.
        sc.capture(nn.Linear(2, 2), torch.zeros(1, 2))
        for asked in args.functions:
            ready = ASKED[asked]
            if asked == "c_source" and "ResNet" in name:
                continue
            forget()
            model = build().eval()
            call = ready(model, x)
            first = taken(call)
            twins = [ready(build().eval(), x) for _ in range(3)]
            twin = statistics.median([taken(other) for other in twins])
            repeats = args.repeats if first < 3000 else max(3, args.repeats // 4)
            again = min(taken(call) for _ in range(repeats))
            print(
                f"| {name} | {asked} | {first:.1f} | {twin:.1f} | {again:.2f} |",
                flush=True,
            )


def forget():
    """As in a fresh process: nothing is known of any program."""
    from secateurs.graph import replay

    getattr(replay, "COMPARED", getattr(replay, "CHECKED", None)).clear()
    replay.REMEMBERED.clear()


if __name__ == "__main__":
    main()
