"""The spectral budget beside global, ERK and uniform on trained networks: `python
benchmarks/spectral_budget.py`.

Magnitude scores, one shot, no training after pruning. Writes results/spectral_budget.csv.
"""

import copy
import csv
from pathlib import Path

import torch
from torch import nn

from secateurs.base import random
from secateurs.base.prunable import prunable
from secateurs.masks import apply_, select
from secateurs.masks.spectral import matrix_norm, product_bound
from secateurs_lab.data import load
from secateurs_lab.models import build
from secateurs_lab.train import evaluate, fit_

SCOPES = ("spectral", "global", "erk", "uniform")
SPARSITIES = (0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95)
CASES = (
    ("lenet-300-100", "digits", "30ep"),
    ("lenet-300-100", "fashion-mnist", "4ep"),
    ("lenet-5", "fashion-mnist", "2ep"),
)


def trained(arch: str, data: str, length: str) -> tuple[nn.Module, float]:
    dataset = load(data)
    source = random.generator(0, f"{arch}/{data}")
    model = build(arch, in_channels=dataset.in_channels, size=dataset.size, generator=source)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit_(
        model,
        dataset,
        optimizer=optimizer,
        length=length,
        generator=source,
        evaluate_every=0,
        verbose=False,
    )
    return model, evaluate(model, dataset).accuracy


def row(model: nn.Module, data: str, sparsity: float) -> list[str]:
    """Π(1 + ‖ΔW‖/‖W‖) − 1 and the test accuracy in percent, scope by scope."""
    weights = {name: p.detach() for name, p in prunable(model).items()}
    scores = {name: w.abs() for name, w in weights.items()}
    norms = {name: matrix_norm(w) for name, w in weights.items()}
    found = []
    for scope in SCOPES:
        masks = select(scores, sparsity=sparsity, scope=scope, weights=weights)
        changes = {name: matrix_norm(w * ~masks[name]) for name, w in weights.items()}
        pruned = copy.deepcopy(model)
        apply_(pruned, masks)
        accuracy = evaluate(pruned, load(data)).accuracy
        found += [f"{product_bound(norms, changes):.3g}", f"{100 * accuracy:.1f}"]
    return found


def main() -> None:
    out = Path(__file__).with_name("results") / "spectral_budget.csv"
    with out.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        pairs = (f"{scope} {what}" for scope in SCOPES for what in ("bound", "accuracy"))
        table.writerow(("network", "data", "length", "dense", "sparsity", *pairs))
        for arch, data, length in CASES:
            model, dense = trained(arch, data, length)
            for sparsity in SPARSITIES:
                case = (arch, data, length, f"{100 * dense:.1f}", sparsity)
                found = (*case, *row(model, data, sparsity))
                table.writerow(found)
                print(*found, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
