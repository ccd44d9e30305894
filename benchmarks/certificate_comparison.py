"""Our certificates beside auto_LiRPA's: the same networks, changes and balls.

    python benchmarks/certificate_comparison.py [--points 10] [--theirs IBP CROWN CROWN-Optimized] \
        [--ours interval affine linear] [--networks max-pool LeNet]

auto_LiRPA sees one network that computes f(x) − g(x). Per row: the median over the points of
bound / (largest deviation found by search), for the output where the bound is largest, and the
processor time for all points. Without auto_LiRPA (`pip install auto_LiRPA`) its columns are empty.
Networks are trained for one epoch on Fashion-MNIST; float64, but auto_LiRPA's maximum pools only
know float32.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import secateurs_lab as lab
from certificate_quality import cut, int8, pixel_range, table
from secateurs.base.random import generator
from secateurs.proof.certify import search_boxes
from secateurs.proof.domain import ball_domain
from secateurs.proof.methods import run_methods
from secateurs.proof.problem import read_problem

OURS = ["interval", "affine", "linear"]


def networks():
    """Shallow, deep, with maximum pools, with pools that overlap, convolutions, average pools."""
    hidden = [m for _ in range(8) for m in (nn.Linear(50, 50), nn.ReLU())]
    yield (
        "784-100-100-10",
        nn.Sequential(
            nn.Flatten(),
            nn.Linear(784, 100),
            nn.ReLU(),
            nn.Linear(100, 100),
            nn.ReLU(),
            nn.Linear(100, 10),
        ),
    )
    yield (
        "784-50×9-10",
        nn.Sequential(nn.Flatten(), nn.Linear(784, 50), nn.ReLU(), *hidden, nn.Linear(50, 10)),
    )
    for name, pools, side in (
        ("2 conv, max-pool 2", [nn.MaxPool2d(2), nn.MaxPool2d(2)], 7),
        ("2 conv, max-pool 3/2", [nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(3, 2, 1)], 7),
    ):
        yield (
            name,
            nn.Sequential(
                nn.Conv2d(1, 4, 5, padding=2),
                nn.ReLU(),
                pools[0],
                nn.Conv2d(4, 8, 3, padding=1),
                nn.ReLU(),
                pools[1],
                nn.Flatten(),
                nn.Linear(8 * side * side, 10),
            ),
        )

    steps = ((1, 4, 1), (4, 4, 2), (4, 8, 1), (8, 8, 2), (8, 8, 1))
    convolutions = [
        layer
        for before, after, stride in steps
        for layer in (nn.Conv2d(before, after, 3, stride, 1), nn.ReLU())
    ]
    yield (
        "5 conv",
        nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(8 * 49, 10)),
    )
    yield (
        "LeNet-5, average pools",
        nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(400, 60),
            nn.ReLU(),
            nn.Linear(60, 10),
        ),
    )


def train(model, data):
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for x, y in data.batches(100, generator=generator(0, "order")):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval()


class Difference(nn.Module):
    """f(x) − g(x)."""

    def __init__(self, f, g):
        super().__init__()
        self.f, self.g = f, g

    def forward(self, x):
        return self.f(x) - self.g(x)


def ours(problem, domain, methods):
    """name → (bounds per ball, seconds)."""
    for method in methods:
        start = time.process_time()
        proven, _ = run_methods(problem, domain, [method])
        seconds = time.process_time() - start
        if method in proven:
            yield method, proven[method].per_output.amax(1), seconds


def theirs(f, g, domain, methods):
    """The same from auto_LiRPA, one ball at a time as its memory is per batch."""
    try:
        from auto_LiRPA import BoundedModule, BoundedTensor
        from auto_LiRPA.perturbations import PerturbationLpNorm
    except ImportError:
        print("auto_LiRPA is not here; pip install auto_LiRPA")
        return
    pools = any(isinstance(m, nn.MaxPool2d) for m in f.modules())
    dtype = torch.float32 if pools else torch.float64
    both = Difference(f, g).to(dtype)
    torch.set_default_dtype(dtype)  # its optimised bounds are stored in the default one
    lo, hi, center = (t.to(dtype) for t in (domain.lo, domain.hi, domain.center))
    for method in methods:
        start = time.process_time()
        bounded = BoundedModule(
            both,
            center[:1],
            bound_opts={"optimize_bound_args": {"iteration": 10}},
            verbose=False,
        )
        found = []
        for k in range(len(lo)):
            ball = PerturbationLpNorm(norm=float("inf"), x_L=lo[k : k + 1], x_U=hi[k : k + 1])
            x = BoundedTensor(center[k : k + 1], ball)
            low, high = bounded.compute_bounds(x=(x,), method=method)
            found.append(torch.maximum(high, -low).amax().detach().double())
        yield method, torch.stack(found), time.process_time() - start
    torch.set_default_dtype(torch.float32)


def rows(data, points, our_methods, methods, wanted):
    low, high, unit = pixel_range(data)
    x = data.test_x[:points].double()
    torch.manual_seed(0)
    for name, model in networks():
        if not any(part in name for part in wanted):
            continue
        model = train(model, data)
        for label, change in (
            ("int8", int8),
            ("20 %", lambda m: cut(m, 0.2, "layer")),
        ):
            other = change(model)
            f, g = model.double(), other.double()
            problem = read_problem(f, g, x[:1])
            for radius in (0.004, 0.01):
                domain = ball_domain(x, radius * unit, clip=(low - 1e-6, high + 1e-6))
                start = generator(0, "search")
                found = search_boxes(problem, domain, restarts=4, steps=10, generator=start)
                truth = found.per_output.amax(1)
                cells = {
                    method: f"{(bound / truth).median():.4g} ({seconds:.1f} s)"
                    for source in (
                        ours(problem, domain, our_methods),
                        theirs(f, g, domain, methods),
                    )
                    for method, bound, seconds in source
                }
                yield [
                    name,
                    label,
                    f"{radius:g}",
                    f"{truth.median():.3g}",
                    *[cells.get(method, "") for method in (*our_methods, *methods)],
                ]
            model = model.float()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=10)
    parser.add_argument("--theirs", nargs="*", default=["IBP", "CROWN"])
    parser.add_argument("--ours", nargs="*", default=OURS)
    parser.add_argument(
        "--networks",
        nargs="*",
        default=[""],
        help="only those with one of these in the name",
    )
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    torch.set_num_threads(1)
    out = args.out.open("w") if args.out else None
    head = ["network", "change", "radius", "found"]
    head += [f"our {m}" for m in args.ours] + [f"auto_LiRPA {m}" for m in args.theirs]
    data = lab.data.load("fashion-mnist")
    table(head, rows(data, args.points, args.ours, args.theirs, args.networks), out)


if __name__ == "__main__":
    main()
