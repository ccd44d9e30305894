"""Weight decay on the paths of factors, against weight decay on the factors.

    python benchmarks/path_decay.py [--out FILE] [--seeds 0 1 2] [--epochs 200]

Each weight of a network 64-300-100-10 without biases is a product of D explicit factors, trained on
scikit-learn's digits by SGD with momentum; to the loss comes λ/D · Σ‖ω‖², or μ times
`secateurs.paths.factor_path_penalty`. "rescaled" multiplies what goes into a third of the hidden
units by 128 and divides what comes out: the same function, the factors as balanced as before. A
weight counts as zero below 1e-3 of the largest of its layer, or where no path is left through it;
test accuracy is that of the network without these. Rows that are in FILE are not trained again.
"""

import argparse
import csv
import math
import time
from itertools import pairwise, product
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call

import secateurs as sc
from secateurs.paths import factor_path_penalty

SIZES = 64, 300, 100, 10
STRENGTHS = {"factors": (1e-3, 2e-3, 3e-3), "paths": (0.1, 0.2, 0.3)}
FIELDS = (
    *("penalty", "depth", "start", "strength", "seed", "accuracy", "compression"),
    *("units", "path norm", "seconds"),
)


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    first, second, last = (nn.Linear(a, b, bias=False) for a, b in pairwise(SIZES))
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)


def rescale_(model: nn.Sequential, seed: int) -> None:
    drawn = torch.Generator().manual_seed(seed + 100)
    layers = [model[0], model[2], model[4]]
    for layer, after in pairwise(layers):
        size = torch.where(torch.rand(len(layer.weight), generator=drawn) < 1 / 3, 128.0, 1.0)
        layer.weight.data *= size[:, None]
        after.weight.data /= size


def train(penalty: str, depth: int, start: str, strength: float, seed: int, epochs: int) -> dict:
    images, y = map(torch.tensor, load_digits(return_X_y=True))
    x = images.float() / 16
    held = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    rest, test = held[360:], held[:360]
    model = network(seed)
    if start == "rescaled":
        rescale_(model, seed)
    graph = sc.capture(model.eval(), x[:1])
    factors = {}
    for name, p in model.named_parameters():
        # Balanced factors of the weights as they were drawn.
        root = p.detach().abs().pow(1 / depth).expand(depth, *p.shape).clone()
        root[0] *= p.detach().sign()
        factors[name] = root.requires_grad_()
    optimizer = torch.optim.SGD(factors.values(), lr=0.1, momentum=0.9)
    steps = epochs * math.ceil(len(rest) / 64)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    drawn, begun = torch.Generator().manual_seed(seed), time.process_time()
    for _ in range(epochs):
        for batch in rest[torch.randperm(len(rest), generator=drawn)].split(64):
            weights = {name: f.prod(0) for name, f in factors.items()}
            loss = F.cross_entropy(functional_call(model, weights, x[batch]), y[batch])
            if penalty == "factors":
                loss = loss + strength / depth * sum(f.square().sum() for f in factors.values())
            else:
                loss = loss + strength * factor_path_penalty(model, graph, factors).float()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(factors.values(), 10.0)
            optimizer.step()
            schedule.step()
    return {**result(model, factors, x[test], y[test]), "seconds": time.process_time() - begun}


@torch.no_grad()
def result(model: nn.Sequential, factors: dict[str, Tensor], x: Tensor, y: Tensor) -> dict:
    for name, p in model.named_parameters():
        weight = factors[name].prod(0)
        p.copy_(weight * (weight.abs() > 1e-3 * weight.abs().max()))
    alive = sc.liveness(model, x[:1])
    # What no path runs through counts as zero, whatever the weight is.
    kept = sum(int(cost.count_nonzero()) for cost in sc.path_costs(model, x[:1]).values())
    return {
        "accuracy": 100 * float((model(x).argmax(1) == y).float().mean()),
        "compression": sum(p.numel() for p in model.parameters()) / max(1, kept),
        "units": sum(layer.channels - len(layer.dead) for layer in alive.layers[:2]),
        "path norm": float(sc.path_norm(model, x[:1])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/path_decay.csv"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    if options.out.exists():
        with options.out.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    done = {tuple(row[name] for name in FIELDS[:5]) for row in rows}
    plan = [
        (penalty, depth, start, strength, seed)
        for seed, depth, start, penalty in product(
            options.seeds, (2, 3), ("drawn", "rescaled"), ("factors", "paths")
        )
        for strength in STRENGTHS[penalty]
    ]
    for job in plan:
        if tuple(map(str, job)) in done:
            continue
        found = {k: f"{v:.5g}" for k, v in train(*job, epochs=options.epochs).items()}
        rows.append({**dict(zip(FIELDS, map(str, job), strict=False)), **found})
        print(rows[-1], flush=True)
        with options.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
