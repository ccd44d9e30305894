"""Masks drawn at initialisation by the best probabilities on paths, against other single looks.

    python benchmarks/path_draws.py [--out FILE] [--train]

Printed for LeNet-300-100, LeNet-5 and ResNet-20 as initialised: the
relative variance of the paths, E‖Φ(θ) − Φ(m θ/p)‖₂² / ‖Φ(θ)‖₂², of draws with as many entries kept.
With `--train`: the test accuracy of LeNet-300-100 after ten epochs on 20,000 images of
Fashion-MNIST (SGD, one cycle to 0.1, zeros held), three seeds; the rows of --out are not trained
again.
"""

import argparse
import csv
from itertools import product
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import secateurs as sc
from secateurs.masks.systematic import inclusion_of_all
from secateurs.paths import draw_variance, keep_probabilities
from secateurs_lab import data, models

SPARSITIES = (0.5, 0.8, 0.9, 0.95, 0.98)
FIELDS = ("init", "way", "sparsity", "seed", "accuracy")
WAYS = {
    "top |w|": ("magnitude", {}),
    "top path cost": ("path", {}),
    "draw |w|": ("magnitude", {"how": "systematic", "scope": "proportional"}),
    "draw path cost": ("path", {"how": "systematic", "scope": "proportional"}),
    "draw best p": ("path-draw", {"how": "systematic", "scope": "proportional"}),
    "SynFlow, 50 rounds": ("synflow", {"rounds": 50}),
}


def variances(name: str, model: nn.Module, example: torch.Tensor) -> None:
    """One row a sparsity."""
    chosen = [n for n, p in model.named_parameters() if p.ndim > 1]
    weights = {n: model.get_parameter(n).detach().abs() for n in chosen}
    costs = {q: sc.path_costs(model, example, q=q, relative=True) for q in (1, 2)}
    total = sum(w.numel() for w in weights.values())
    for sparsity in SPARSITIES:
        keep = round(total * (1 - sparsity))
        best = keep_probabilities(model, example, sparsity=sparsity)
        draws = {
            "|w|": weights,
            "w²": {n: w**2 for n, w in weights.items()},
            "path cost": {n: costs[1][n] for n in chosen},
            "√ path cost (q = 2)": {n: costs[2][n].sqrt() for n in chosen},
        }
        found = {
            way: draw_variance(model, example, inclusion_of_all(scores, keep))
            for way, scores in draws.items()
        }
        assert best.variance <= min(found.values()) * (1 + 1e-6), (name, sparsity)
        line = " | ".join(f"{v:.3g}" for v in (*found.values(), best.variance))
        print(f"| {name} | {sparsity:.0%} | {line} | {best.steps} |", flush=True)


def accuracy(init: str, way: str, sparsity: float, seed: int, images: data.Dataset) -> float:
    """Pruned at the start, trained, tested."""
    torch.manual_seed(seed)
    model = models.build("lenet-300-100", in_channels=1, classes=10, size=28, init=init)
    score, more = WAYS[way]
    generator = torch.Generator().manual_seed(100 + seed)
    masks = sc.prune_(
        model,
        score,
        sparsity=sparsity,
        example=torch.ones(1, 1, 28, 28),
        generator=generator,
        **more,
    ).masks
    x, y = images.train_x[:20000], images.train_y[:20000]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sc.hold(model, masks, optimizer)
    steps = 10 * -(-len(x) // 128)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, steps)
    source = torch.Generator().manual_seed(seed)
    for _ in range(10):
        for rows in torch.randperm(len(x), generator=source).split(128):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
            rate.step()
    with torch.no_grad():
        right = model(images.test_x).argmax(1) == images.test_y
    return 100 * float(right.double().mean())


def train(out: Path) -> None:
    """Every cell that is not in the file."""
    known = set()
    if out.exists():
        with out.open(encoding="utf-8", newline="") as file:
            known = {tuple(r[f] for f in FIELDS[:4]) for r in csv.DictReader(file)}
    else:
        out.write_text(",".join(FIELDS) + "\n", encoding="utf-8")
    images = data.load("fashion-mnist")
    cells = product(("kaiming-normal", "torch"), (0.8, 0.9, 0.95, 0.98, 0.99), range(3), WAYS)
    for init, sparsity, seed, way in cells:
        if (init, way, str(sparsity), str(seed)) in known:
            continue
        found = round(accuracy(init, way, sparsity, seed, images), 2)
        print(init, way, sparsity, seed, found, flush=True)
        with out.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file).writerow((init, way, sparsity, seed, found))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/path_draws.csv"))
    args = parser.parse_args()
    if args.train:
        return train(args.out)
    print("| network | zeros | \\|w\\| | w² | path cost | √ path cost | best p | steps |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    torch.manual_seed(0)
    for name, channels, size in (
        ("lenet-300-100", 1, 28),
        ("lenet-5", 1, 28),
        ("resnet-20", 3, 32),
    ):
        model = models.build(name, in_channels=channels, classes=10, size=size).eval()
        variances(name, model, torch.zeros(1, channels, size, size))
    return None


if __name__ == "__main__":
    main()
