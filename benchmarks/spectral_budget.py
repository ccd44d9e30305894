"""The spectral budget beside global, ERK and uniform on trained networks: `python
benchmarks/spectral_budget.py`.

Magnitude scores, one shot, no training after pruning. What results/spectral_budget.csv does not
have yet is measured and written there; then the page's table is printed.
"""

import copy
import csv
from collections import defaultdict
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


SEEDS = (0, 1, 2)
NAMES = {"lenet-300-100": "LeNet-300-100", "lenet-5": "LeNet-5"}
DATA = {"digits": "digits", "fashion-mnist": "Fashion-MNIST"}


def trained(arch: str, data: str, length: str, seed: int) -> tuple[nn.Module, float]:
    dataset = load(data)
    source = random.generator(seed, f"{arch}/{data}")
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


def table(rows: list[dict[str, str]]) -> None:
    """Means over the seeds."""
    heads = (scope.replace("erk", "ERK") for scope in SCOPES)
    print(f"| network, dense | sparsity | {' | '.join(heads)} |")
    print("|---" * (2 + len(SCOPES)) + "|")
    groups = defaultdict[tuple[str, str, str], list[dict[str, str]]](list)
    for line in rows:
        groups[line["network"], line["data"], line["sparsity"]].append(line)
    for (arch, data, sparsity), group in groups.items():

        def mean(what: str, group: list[dict[str, str]] = group) -> float:
            return sum(float(line[what]) for line in group) / len(group)

        cells = [f"{mean(f'{s} bound'):.3g} / {mean(f'{s} accuracy'):.1f}" for s in SCOPES]
        name = f"{NAMES[arch]}, {DATA[data]}, {mean('dense'):.1f} %"
        print(f"| {name} | {100 * float(sparsity):g} % | {' | '.join(cells)} |")


def main() -> None:
    out = Path(__file__).with_name("results") / "spectral_budget.csv"
    if not out.exists():
        pairs = (f"{scope} {what}" for scope in SCOPES for what in ("bound", "accuracy"))
        head = ("network", "data", "length", "seed", "dense", "sparsity", *pairs)
        out.write_text(",".join(head) + "\n", encoding="utf-8")
    with out.open(newline="", encoding="utf-8") as file:
        known = {(r["network"], r["data"], int(r["seed"])) for r in csv.DictReader(file)}
    for seed in SEEDS:
        for arch, data, length in CASES:
            if (arch, data, seed) in known:
                continue
            model, dense = trained(arch, data, length, seed)
            with out.open("a", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                for sparsity in SPARSITIES:
                    case = (arch, data, length, seed, f"{100 * dense:.1f}", sparsity)
                    writer.writerow((*case, *row(model, data, sparsity)))
    with out.open(newline="", encoding="utf-8") as file:
        table(list(csv.DictReader(file)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
