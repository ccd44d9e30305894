"""Figures 6, 7, 13, 15 to 20 and 24: what happens during factorized training, epoch by epoch."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from experiments.experiment import Comparison, Experiment, Row, Scale, publish
from experiments.factorization import plans
from experiments.factorization.training import (
    EpochEnd,
    FactorizationSettings,
    accuracy_of,
    build_network,
    load_images,
    train_or_none,
)
from secateurs.optim import Dynamics


def plan(scale: Scale) -> list[FactorizationSettings]:
    """Depths, strengths, a start with balanced factors, and other schedules of the rate."""
    if scale == "smoke":
        return [replace(plans.SMOKE, strength=2e-2)]
    usual, large = plans.pair_of(scale)
    text = replace(plans.base_of(scale), strength=usual)
    by_depth = [replace(text, depth=depth) for depth in (3, 2, 4)]
    by_strength = [replace(text, strength=x) for x in (0.3 * usual, large)]
    balanced = replace(text, init="root", match_variance=True)
    settings = [*by_depth, *by_strength, balanced, replace(text, anneal=0.0)]
    if scale == "short":
        return settings
    # Figure 6 has the schedules at depth 4, figure 24 from `root`.
    deep = replace(text, depth=4)
    schedules: tuple[float | Literal["steps"], ...] = (0.0, "steps")
    return settings + [replace(each, anneal=x) for each in (deep, balanced) for x in schedules]


def _work(settings: FactorizationSettings) -> Iterator[dict[str, object]]:
    dataset = load_images(settings)
    total = sum(p.numel() for p in build_network(settings, dataset).parameters())
    rows: list[dict[str, object]] = []

    def watch(epoch: EpochEnd) -> None:
        rows.append({"epoch": epoch.number, **_sample(epoch, total)})

    # If the loss diverges, the epochs before that are the result.
    train_or_none(settings, dataset, watch)
    shown = ("depth", "strength", "init", "rate", "anneal", "seed")
    named = {name: getattr(settings, name) for name in shown}
    yield from ({**named, **row} for row in rows)


def _sample(epoch: EpochEnd, total: int) -> dict[str, object]:
    """The whole net, and its parameters in order (numbers in one text).

    The net may have lost dead units, which count as zeros of the whole net.
    """
    net, loss = epoch.net, epoch.loss
    recorder = Dynamics(epoch.optimizer, model=net)
    recorder.record(loss)
    sample = recorder.samples[-1]
    sizes = {name: p.numel() for name, p in net.named_parameters()}
    # Counts instead of shares: dead units may have been cut out, and count as zeros of the whole
    # net.
    kept = {n: round((1 - layer.sparsity) * sizes[n]) for n, layer in sample.layers.items()}
    return {
        "loss": loss,
        "accuracy": accuracy_of(net, epoch.images),
        "compression": total / max(1, sum(kept.values())),
        "norm": sample.norm,
        "misalignment": sample.misalignment,
        "minimal_penalty": sample.minimal_penalty,
        "excess_penalty": sample.excess_penalty,
        # All layers in one cell, since all rows of a file have the same columns.
        "kept": " ".join(map(str, kept.values())),
        "norms": " ".join(f"{layer.norm:.5g}" for layer in sample.layers.values()),
        "misalignments": " ".join(f"{x.misalignment:.5g}" for x in sample.layers.values()),
    }


ROUNDING = 1e-9
"""Of the penalty: a misalignment below it is that of balanced factors in float32."""


def compare(rows: Sequence[Row]) -> list[Comparison]:
    """When zeros appear, how misaligned the factors are then, and the figures at the end."""
    figures = []
    for job in dict.fromkeys(row["job"] for row in rows):
        own = [row for row in rows if row["job"] == job]
        found: dict[str, float] = {}
        # From one weight in a hundred on: before that, single zeros come and go.
        first = next((row for row in own if float(row["compression"]) > 1 / 0.99), None)
        if first is not None:
            found["first epoch with zeros"] = float(first["epoch"])
            start = float(own[0]["misalignment"])
            # Factors that begin balanced stay so: what is left is rounding, and no share of it
            # says anything.
            if start > ROUNDING * float(own[0]["minimal_penalty"]):
                share = float(first["misalignment"]) / start
                found["misalignment then, as a share of that after epoch 1"] = share
        for name in ("compression", "accuracy", "norm"):
            found[f"{name} at the end"] = float(own[-1][name])
        figures += [Comparison(what=f"{job}: {what}", ours=(x,)) for what, x in found.items()]
    return figures


publish(
    Experiment(
        name="weight-factorization-dynamics",
        paper="Kolb et al. 2025",
        what="figures 6, 7, 13, 15-20, 24: sparsity, norm and misalignment, epoch by epoch",
        jobs=plans.jobs_of(plan, _work),
        compare=compare,
        settings={
            "smoke": "LeNet-300-100, 2,000 images of Fashion-MNIST, 8 epochs, one λ",
            "short": f"{plans.DIGITS}, depths 2-4, three λ, two starts",
            "cpu": "LeNet-300-100 on Fashion-MNIST, 75 epochs, depths 2-4, three λ, two starts, three"
            " schedules of the rate",
            "full": "as at cpu (the paper also shows ResNet-18)",
        },
    )
)
