"""Lemma 4 with momentum: what balancing factors, or factors and velocities, does to a training.

    python benchmarks/balancing.py [--out FILE.csv] [--data digits] [--seeds 2]

Kolb et al. (2025), Lemma 4: once the factors of a weight are balanced, plain SGD keeps them so, and
a weight whose factors are dead stays dead. With momentum that holds only if the velocities are
balanced as well. Three trainings from the same start, alike but for what happens at the end of
each epoch:

* nothing;
* the factors of each weight are replaced by balanced ones of the same product;
* the same, and the velocities by ones of the same velocity of the product, equally shared.

Printed: test accuracy, compression at the paper's threshold, and the first epoch at which half and
nine tenths of the weights lie below it.
"""

import argparse
import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import secateurs as sc
import secateurs_lab as lab
from secateurs.optim.factorized.maths import EPS

WAYS = ("none", "factors", "factors and velocities")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One training."""

    depth: int
    rate: float
    strength: float
    momentum: float
    balanced: str
    seed: int
    accuracy: float
    compression: float
    half: int | None
    nine_tenths: int | None


@torch.no_grad()
def balance_(optimizer: sc.optim.FactorizedSGD, *, velocities: bool) -> None:
    """Balanced factors of the same weights; with `velocities`, of the same velocity of the product.

    The velocity of w = Πω_d is u = Σ_d v_d Π_{k≠d} ω_k. Equally shared, each factor gives u/D.
    """
    for _, parameter in optimizer.factorized():
        factors, state = optimizer.factors(parameter).clone(), optimizer.state[parameter]
        velocity = state.get("momentum")
        depth = len(factors)
        weight = factors.prod(0)
        size = weight.abs() ** (1 / depth)
        even = size.expand_as(factors).clone()
        even[0] *= weight.sign()
        if velocities and velocity is not None:
            others = torch.stack(
                [factors[[k for k in range(depth) if k != d]].prod(0) for d in range(depth)]
            )
            moving = (velocity * others).sum(0)
            now = torch.stack(
                [even[[k for k in range(depth) if k != d]].prod(0) for d in range(depth)]
            )
            shared = torch.where(now == 0, torch.zeros_like(now), moving / (depth * now))
        optimizer.set_factors(parameter, even)
        if velocities and velocity is not None:
            velocity.copy_(shared)


def train(
    data: lab.data.Dataset,
    *,
    depth: int,
    rate: float,
    strength: float,
    momentum: float,
    balanced: str,
    seed: int,
    epochs: int,
) -> Row:
    """Train a LeNet-300-100 of `depth` factors and say what came out."""
    g = torch.Generator().manual_seed(seed)
    model = lab.models.build(
        "lenet-300-100", size=data.size, in_channels=data.in_channels, generator=g
    )
    optimizer = sc.optim.FactorizedSGD(
        model.named_parameters(),
        lr=rate,
        momentum=momentum,
        strength=strength,
        depth=depth,
        generator=g,
    )
    per_epoch = math.ceil(len(data.train_x) / 64)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * per_epoch)
    reached: dict[float, int | None] = {0.5: None, 0.9: None}
    setting: dict[str, Any] = {
        "depth": depth,
        "rate": rate,
        "strength": strength,
        "momentum": momentum,
        "balanced": balanced,
        "seed": seed,
    }
    for epoch in range(epochs):
        for x, y in data.batches(64, generator=g):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            try:
                optimizer.step()
            except sc.errors.TrainingError:  # diverged: this is a result, too
                return Row(**setting, accuracy=math.nan, compression=math.nan, **_named(reached))
            schedule.step()
        if balanced != "none":
            balance_(optimizer, velocities=balanced == WAYS[2])
        small = sum(int((p.abs() <= EPS).sum()) for p in model.parameters())
        total = sum(p.numel() for p in model.parameters())
        for share in reached:
            if reached[share] is None and small >= share * total:
                reached[share] = epoch + 1
    kept = sum(int((p.abs() > EPS).sum()) for p in model.parameters())
    accuracy = 100 * lab.train.evaluate(model, data).accuracy
    return Row(**setting, accuracy=accuracy, compression=total / max(kept, 1), **_named(reached))


def _named(reached: dict[float, int | None]) -> dict[str, Any]:
    return {"half": reached[0.5], "nine_tenths": reached[0.9]}


def rows(
    data: lab.data.Dataset, *, depths: Sequence[int], seeds: Sequence[int], epochs: int
) -> Iterator[Row]:
    """Two strengths at every depth, with momentum 0.9."""
    for depth, strength, seed in product(depths, (7.5e-4, 1.25e-3), seeds):
        for balanced in WAYS:
            yield train(
                data,
                depth=depth,
                rate=0.3 if depth == 3 else 0.1,
                strength=strength,
                momentum=0.9,
                balanced=balanced,
                seed=seed,
                epochs=epochs,
            )


def main() -> None:
    """Train all, print a row each, write them as CSV."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--depths", type=int, nargs="+", default=[3, 4, 6, 8])
    parser.add_argument("--epochs", type=int, default=300)
    asked = parser.parse_args()
    data = lab.data.load(asked.data)
    found: list[dict[str, object]] = []
    for row in rows(data, depths=asked.depths, seeds=range(asked.seeds), epochs=asked.epochs):
        found.append(asdict(row))
        print(row, flush=True)
        if asked.out:
            with asked.out.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(found)


if __name__ == "__main__":
    main()
