"""What `target_sparsity` costs with AdamW at its usual rates.

python benchmarks/adamw_target.py [SEEDS]      prints a table (Markdown); one thread

CNNs on the digits, depth 3, 95 %, 40 epochs of 64 examples a step, cosine to 0; beside it gradual
magnitude pruning with the same AdamW. Accuracy on the 360 test digits after `collapse_`.
"""

import logging
import sys

import torch
from torch import nn

import secateurs as sc
import secateurs_lab as lab
from secateurs.base.random import generator

EPOCHS, STEPS, TARGET = 40, 40 * 23, 0.95


def small():
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def small_with_norms():
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10)),
    )


def large(norms=False):
    def norm(channels):
        return nn.BatchNorm2d(channels) if norms else nn.Identity()

    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), norm(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), norm(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


NETWORKS = {
    "small": small,
    "small, norms": small_with_norms,
    "large": large,
    "large, norms": lambda: large(norms=True),
}


def factorized(model, rate, seed):
    """The optimizer, and what it does after each step and at the end."""
    optimizer = sc.optim.Factorized(
        model.named_parameters(),
        base=torch.optim.AdamW,
        base_kwargs={"lr": rate},
        steps=STEPS,
        target_sparsity=TARGET,
        init="dwf",
        generator=generator(seed, "factors"),
    )
    return optimizer, lambda: None, lambda: optimizer.collapse_(model).only_cut


def magnitude(model, rate, seed):
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    when = {"start": int(0.2 * STEPS), "end": int(0.7 * STEPS), "every": 20}
    recipe = sc.Recipe(sparsity=TARGET)
    gradual = sc.prune.GradualPruning(model, recipe, optimizer, **when)
    return (
        optimizer,
        gradual.step,
        lambda: gradual.rounds[-1].total - gradual.rounds[-1].kept,
    )


def train(make, network, rate, seed):
    """Accuracy in %, and the weights that a cut removed."""
    torch.manual_seed(seed)
    model, data = network(), lab.data.load("digits")
    optimizer, stepped, ended = make(model, rate, seed)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    draw = generator(seed, "batches")
    for _ in range(EPOCHS):
        for x, y in data.batches(64, generator=draw):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            stepped()
            schedule.step()
    cut = ended()
    return 100 * lab.train.evaluate(model, data).accuracy, cut


def main(seeds):
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    print("| network | weights | rate | method | accuracy %, by seed | cut by rank |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, network in NETWORKS.items():
        total = sum(p.numel() for p in network().parameters())
        for rate in (1e-3, 3e-3):
            for make in (factorized, magnitude):
                found = [train(make, network, rate, seed) for seed in range(seeds)]
                each = ", ".join(f"{accuracy:.1f}" for accuracy, _ in found)
                cuts = ", ".join(f"{cut / total:.1%}" for _, cut in found)
                print(
                    f"| {name} | {total:,} | {rate:g} | {make.__name__} | {each} | {cuts} |",
                    flush=True,
                )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
