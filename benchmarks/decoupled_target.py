"""Does `target_sparsity` learn as well under a decoupled decay as under a coupled one?

python benchmarks/decoupled_target.py [SEEDS]      prints a table (Markdown); one thread

MLP 64-100-10 on the digits, depth 2, 90 %: AdamW at 3e-3 (`Factorized`) and SGD at 0.15
(`FactorizedSGD`), cosine to 0, three lengths of run. Accuracy on 450 digits that were not
trained on.
"""

import logging
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

from secateurs.optim import Factorized, FactorizedSGD

STEPS = (1000, 3000, 6000)
OPTIMIZERS = {
    "AdamW 3e-3": lambda named, **options: Factorized(
        named, base=torch.optim.AdamW, base_kwargs={"lr": 3e-3}, **options
    ),
    "SGD 0.15": lambda named, **options: FactorizedSGD(named, lr=0.15, **options),
}


def digits():
    """Pixels in [0, 1] and labels, the order mixed once; 1,347 to train on, 450 to test."""
    loaded = load_digits()
    order = torch.randperm(len(loaded.data), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(loaded.data).float()[order] / 16
    y = torch.tensor(loaded.target)[order]
    return (x[:1347], y[:1347]), (x[1347:], y[1347:])


def accuracy(model, batch):
    x, y = batch
    with torch.no_grad():
        return 100 * float((model(x).argmax(1) == y).float().mean())


def train(make, train_on, *, steps, seed, decoupled):
    """The model after the run and before its collapse, and the optimizer."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    options = {"depth": 2, "steps": steps, "target_sparsity": 0.9}
    optimizer = make(model.named_parameters(), decoupled=decoupled, **options)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    x, y = train_on
    for _ in range(steps):
        chosen = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()
        rate.step()
    return model, optimizer


def main(seeds):
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    train_on, test_on = digits()
    print("| optimizer | steps | decay | accuracy %, by seed | mean | sparsity % |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, make in OPTIMIZERS.items():
        for steps in STEPS:
            for decoupled in (False, True):
                found, zeros = [], []
                for seed in range(seeds):
                    model, optimizer = train(
                        make, train_on, steps=steps, seed=seed, decoupled=decoupled
                    )
                    zeros.append(100 * optimizer.collapse_().sparsity)
                    found.append(accuracy(model, test_on))
                decay = "decoupled" if decoupled else "coupled"
                each = ", ".join(f"{value:.1f}" for value in found)
                mean = sum(found) / len(found)
                span = f"{min(zeros):.2f}–{max(zeros):.2f}"
                print(
                    f"| {name} | {steps} | {decay} | {each} | {mean:.1f} | {span} |",
                    flush=True,
                )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
