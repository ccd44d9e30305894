"""Targets on balls of many inputs: cutting neurons against cutting inputs, in the same time.

    python benchmarks/many_inputs.py [--seconds 20] [--balls 4] [--share 0.75]

Networks of 3 × 50 trained on the digits (64 inputs) and of 3 × 50 on Fashion-MNIST (784 inputs),
against the same rounded to bfloat16 and with a tenth of each layer cut. A target lies `--share` of
the way from what a search found to what is proven without splitting. Seconds are those of the
processor (one thread), also for the limit: others may use the machine.
"""

import argparse
import copy
import itertools
import sys
import time
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn

import secateurs as sc
from secateurs.certificates import splitting
from secateurs.certificates.problem import TimeLimit
from secateurs.random import generator

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from certificate_quality import cut

# `secateurs.certificates.certify` is the function of that name.
certifying = sys.modules["secateurs.certificates.certify"]

RADII = {"digits": (0.02, 0.05), "fashion-mnist": (2 / 255, 4 / 255)}


def trained(data, x, y):
    """A network of 3 × 50 after 600 steps of Adam."""
    torch.manual_seed(0)
    sizes = (x.shape[1], 50, 50, 50, 10)
    layers = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*layers[:-1])
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    order = generator(0, "many-inputs")
    for _ in range(600):
        index = torch.randint(len(x), (64,), generator=order)
        optimizer.zero_grad()
        F.cross_entropy(model(x[index]), y[index]).backward()
        optimizer.step()
    return model.eval()


def rounded(model):
    other = copy.deepcopy(model)
    for p in other.parameters():
        p.data = p.data.bfloat16().float()
    return other


def limit(**options):
    """A clock of the processor's seconds."""
    return TimeLimit(start=time.process_time(), **options)


def ask(f, g, box, target, seconds, few):
    """The certificate with neurons cut from so many inputs on, and the seconds."""
    start = time.process_time()
    with (
        mock.patch.object(splitting, "_FEW", few),
        mock.patch("time.monotonic", time.process_time),
        mock.patch.object(certifying, "TimeLimit", limit),
    ):
        found = sc.certify(f, g, box=box, target=target, seconds=seconds, restarts=0)
    return found, time.process_time() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--share", type=float, default=0.75)
    parser.add_argument("--balls", type=int, default=4)
    parser.add_argument("--data", nargs="+", default=[*RADII])
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| data | change | radius | ball | found | whole | target | neurons: bound, parts, s |"
        " inputs: bound, parts, s |\n" + "| --- " * 9 + "|",
        flush=True,
    )
    won = {"neurons": 0, "inputs": 0, "asked": 0}
    for data in args.data:
        images = sc.data.load(data)
        x, y = images.train_x.flatten(1), images.train_y
        points = images.test_x.flatten(1)[: args.balls]
        f = trained(data, x, y)
        for change, g in (("bfloat16", rounded(f)), ("10 %", cut(f, 0.1, "layer"))):
            for radius in RADII[data]:
                for ball, centre in enumerate(points):
                    box = (centre[None] - radius, centre[None] + radius)
                    whole = sc.certify(f, g, box=box, restarts=8)
                    low, high = whole.lower_bound, whole.bound
                    target = low + args.share * (high - low)
                    cells = [data, change, f"{radius:.3g}", ball]
                    cells += [f"{v:.4g}" for v in (low, high, target)]
                    won["asked"] += 1
                    for name, few in (("neurons", splitting._FEW), ("inputs", 10**9)):
                        found, seconds = ask(f, g, box, target, args.seconds, few)
                        won[name] += found.answer == "proven"
                        parts = splitting.Parts.unpack(found.request.parts[0], 10**6)
                        cells.append(
                            f"{found.answer} {found.bound:.4g}, {len(parts)}, {seconds:.1f}"
                        )
                    print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    print(won)


if __name__ == "__main__":
    main()
