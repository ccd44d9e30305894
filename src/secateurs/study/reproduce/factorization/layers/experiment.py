"""Figures 5a, 10 and 13 as one experiment: the trainings of two of them are the same."""

from collections.abc import Sequence

from secateurs.study.reproduce.experiment import EXPERIMENTS, Experiment, Row
from secateurs.study.reproduce.factorization import plans
from secateurs.study.reproduce.factorization.layers.compared import beside
from secateurs.study.reproduce.factorization.layers.networks import (
    Network,
    networks,
    watched,
)
from secateurs.study.reproduce.factorization.layers.work import jobs


def tables(rows: Sequence[Row]) -> str:
    """What is left of each layer, network by network; then figure 5a, epoch by epoch."""
    lines: list[str] = []
    found = networks(rows)
    for place in dict.fromkeys(x.place for x in found):
        here = [x for x in found if x.place == place]
        names = [row["layer"] for row in here[0].layers]
        head = ["method", "λ or asked", "compression", "accuracy %", "norm", *names]
        lines += ["", f"## What is left of each layer, in %: {place}", ""]
        lines += _table(head, [_left(x) for x in sorted(here, key=_order)])
    for job, epochs in watched(rows).items():
        head = ["epoch", "accuracy %", "norm", "below 1.19e-7, %", "not moved, %"]
        lines += ["", f"## Without decay: {job}", ""]
        lines += _table(head, [_epoch(x) for x in epochs])
    return "\n".join([*lines, ""]) if lines else ""


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    rows = (head, ["---"] * len(head), *body)
    return [f"| {' | '.join(row)} |" for row in rows]


def _order(network: Network) -> tuple[str, float]:
    return network.method, network.figure("compression")


def _left(network: Network) -> list[str]:
    shares = [
        "**empty**" if row["layer"] in network.empty else f"{100 * share:.3g}"
        for row, share in (
            (row, network.share(i)) for i, row in enumerate(network.layers)
        )
    ]
    # A network that was only pruned, and not trained, has no accuracy yet.
    accuracy = network.figure("accuracy")
    shown = "" if network.first["accuracy"] == "nan" else f"{accuracy:.2f}"
    compression = f"{network.figure('compression'):.1f}"
    norm = f"{network.figure('norm'):.4g}"
    return [network.method, network.amount, compression, shown, norm, *shares]


def _epoch(network: Network) -> list[str]:
    figures = (
        network.figure("accuracy"),
        network.figure("norm"),
        100 * (1 - network.part("kept")),
        100 * network.part("still"),
    )
    return [network.first["epoch"], *(f"{figure:.4g}" for figure in figures)]


LENET = "LeNet-300-100 on Fashion-MNIST, one seed"
EXPERIMENTS.register("weight-factorization-layers")(
    Experiment(
        name="weight-factorization-layers",
        paper="Kolb et al. 2025",
        what="figures 5a, 10, 13: what is left of each layer, norms, weights that never move",
        jobs=jobs,
        beside=beside,
        more=tables,
        settings={
            "smoke": "LeNet-300-100, 2,000 images of Fashion-MNIST, 8 epochs, two λ",
            "short": f"{plans.DIGITS}, depths 2-4, three λ",
            "cpu": f"{LENET}: depths 2-4, seven λ; other methods at 15 compressions; depth 10",
            "full": "ResNet-18 and VGG-16 on CIFAR-10, small networks for figure 13; depth 10",
        },
    )
)
