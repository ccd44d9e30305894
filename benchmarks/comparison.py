"""What comparing every model with its own graph costs: first calls, twins, repeated calls.

    python benchmarks/comparison.py [--repeats 15]
    python benchmarks/comparison.py --against CHECKOUT [--repeats 40]

Milliseconds of processor time, one thread: the first call of a program in a process that has traced
something before, the first call of a twin (another object, other weights, the same program; the
median of three), and a call of the same model again (the best of the repeats).

With `--against` two processes, one with the package of another checkout, take turns at repeated
calls of a model that was seen: the median of the ratios of neighbours is free of what the machine
does for minutes. Calls of microseconds are repeated until they take 20 ms together. The allocator
keeps its memory in both, else pages that one has and the other has not make half of the time. A
checkout compared with itself says how far equal code is apart.
"""

import argparse
import copy
import os
import statistics
import subprocess
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


def factorized_step(model, x):
    """The optimizer alone, with the gradients of one backward pass."""
    optimizer = sc.optim.FactorizedSGD(model.parameters(), lr=1e-3, depth=3, init="pretrained")
    model(x).square().mean().backward()
    return optimizer.step


def held_step(model, x):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    sc.hold(model, sc.prune_(model, "magnitude", sparsity=0.9).masks, optimizer)
    model(x).square().mean().backward()
    return optimizer.step


def chosen_largest(model, x):
    scores = {name: parameter.detach().abs() for name, parameter in model.named_parameters()}
    return lambda: sc.select(scores, sparsity=0.9)


def program(model, x):
    sc.prune_(model, "magnitude", sparsity=0.9)
    fast = sc.accelerate(model, x, tune="guess", keep="always")
    images = x.expand(8, *x.shape[1:]).contiguous()
    return torch.inference_mode()(lambda: fast(images))


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
    "factorized step": factorized_step,
    "held step": held_step,
    "top-k": chosen_largest,
    "path_costs": lambda m, x: lambda: sc.path_costs(m, x),
    "prune_": lambda m, x: lambda: sc.prune_(m, "magnitude", sparsity=0.9),
    "program": program,
}


def taken(call, times=1):
    start = time.process_time()
    for _ in range(times):
        call()
    return 1e3 * (time.process_time() - start) / times


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--models", nargs="*", default=[*MODELS])
    parser.add_argument("--functions", nargs="*", default=[*ASKED])
    parser.add_argument("--against", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.serve:
        serve()
    elif args.against:
        compare(args)
    else:
        first_calls(args)


def first_calls(args):
    """A program's first call, a twin's, and a call again."""
    print("| model | function | first | a twin | again |\n| --- " * 1 + "| --- " * 4 + "|")
    for name in args.models:
        build, x = MODELS[name]
        torch.manual_seed(0)
        # Loads the tracer, which is not a cost of this model.
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


def compare(args):
    """Pairs of calls, in turns, by this package and by that of another checkout."""
    sources = args.against / "src", Path(__file__).parents[1] / "src"
    keep = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**34)}
    sides = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **keep, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
        )
        for source in sources
    ]

    def asked(side, *words):
        side.stdin.write("|".join(words) + "\n")
        side.stdin.flush()
        return float(side.stdout.readline())

    print("| model | function | before, ms | now, ms | ratio | its quartiles |")
    print("| --- " * 6 + "|")
    for name in args.models:
        for function in args.functions:
            if function == "c_source" and "ResNet" in name:
                continue
            for side in sides:
                asked(side, "make", name, function)
            pairs = []
            for number in range(args.repeats):
                order = sides if number % 2 else sides[::-1]
                times = {id(side): asked(side, "call", name, function) for side in order}
                pairs.append([times[id(side)] for side in sides])
            before, now = (statistics.median(column) for column in zip(*pairs, strict=True))
            low, middle, high = statistics.quantiles([b / a for a, b in pairs], n=4)
            print(
                f"| {name} | `{function}` | {before:.3g} | {now:.3g} | {middle:.2f} |"
                f" {low:.2f} to {high:.2f} |",
                flush=True,
            )
    for side in sides:
        side.stdin.close()


def serve():
    """Build what a line asks for, or call it; print the milliseconds."""
    calls, times = {}, {}
    for line in sys.stdin:
        what, name, function = line.rstrip("\n").split("|")
        if what == "make":
            torch.manual_seed(0)
            build, x = MODELS[name]
            calls[name, function] = ASKED[function](build().eval(), x)
            calls[name, function]()
            once = min(taken(calls[name, function]) for _ in range(3))
            times[name, function] = max(1, round(20 / max(once, 1e-3)))
        print(taken(calls[name, function], times[name, function]), flush=True)


def forget():
    """As in a fresh process: nothing is known of any program."""
    from secateurs.graph import replay

    getattr(replay, "COMPARED", getattr(replay, "CHECKED", None)).clear()
    replay.REMEMBERED.clear()


if __name__ == "__main__":
    main()
