"""CIFAR-10 on two cores: a ResNet-20 made sparse by factorization and by what it is compared with.

    python -m experiments.cifar FOLDER --workers 2

begins the study, or goes on with it; what is finished is never done again, and `secateurs study
report FOLDER` shows it. A run takes some 25 minutes of a core, and with `--epochs 60` one and a
half hours: there λ is fixed beforehand, five strengths a depth. The images are those of
docs/data.md (JPEG).
"""

# mypy: disable-error-code="call-overload,no-any-return"
# torch does not say that `to` takes a memory format. A note in the function would be part of the
# runs' keys.

import argparse
from dataclasses import replace

import torch
from torch import nn

from secateurs_lab.models import build
from secateurs_lab.study import (
    Dwf,
    Gradual,
    How,
    Method,
    Net,
    Prune,
    RigLMethod,
    Study,
    Training,
    run,
)


def resnet_20(generator: torch.Generator | None = None) -> nn.Module:
    """The usual ResNet-20, its images stored channels last: a CPU takes a seventh less time."""
    model = build("resnet-20", classes=10, generator=generator)
    return model.to(memory_format=torch.channels_last)


RATES = {2: 0.2, 3: 0.5}
"""By depth, for a ResNet-18 on CIFAR-10 (table 4 of the factorization paper)."""

OTHERS: tuple[Method, ...] = (
    RigLMethod(),
    Prune(score="synflow", rounds=100, after="init"),
    Prune(score="snip", examples=2560, after="init"),
    Prune(score="synflow", rounds=100, how="sample", after="init"),
    Prune(score="snip", examples=2560, how="sample", after="init"),
)

FIFTEEN = Study(
    name="sparse-cifar",
    model=Net(name="resnet-20-channels-last", make=resnet_20),
    data="cifar-10-jpeg",
    methods=(
        Dwf(depth=2, target=True, strength=2e-4, train={"lr": RATES[2]}),
        Gradual(),
        Dwf(depth=3, target=True, strength=2e-4, train={"lr": RATES[3]}),
        *OTHERS,
    ),
    compressions=(20.0,),
    train=Training(
        length="15ep",
        lr=0.1,
        weight_decay=5e-4,
        warmup="1ep",
        augment=True,
        precision="bf16",
        evaluate_every=3,
    ),
)
"""At 95 % of zeros, in equal epochs, without tuning."""

SIXTY = replace(
    FIFTEEN,
    name="sparse-cifar-sixty",
    methods=(
        # The least of either depth has run on a card, too (`experiments.cifar_card`).
        Dwf(depth=2, strength=(7.5e-4, 1.1e-3, 5.5e-4, 1.6e-3, 4e-4), train={"lr": RATES[2]}),
        Dwf(depth=3, strength=(2.4e-4, 3.6e-4, 1.7e-4, 5.4e-4, 1.21e-4), train={"lr": RATES[3]}),
        Gradual(),
        *OTHERS,
    ),
    compressions=(20.0, 50.0, 10.0),
    train=replace(FIFTEEN.train, length="60ep", evaluate_every=5),
)
"""Five strengths that are fixed beforehand, and the compressions that they are compared at."""

STUDIES = {15: FIFTEEN, 60: SIXTY}
"""By the number of their epochs."""


def main() -> None:
    """Begin the study, or go on with it."""
    parser = argparse.ArgumentParser(prog="python -m experiments.cifar", description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--epochs", type=int, choices=STUDIES, default=15)
    asked = parser.parse_args()
    with run(
        STUDIES[asked.epochs], asked.folder, how=How(engine="local", workers=asked.workers)
    ) as store:
        for row in store.rows():
            print(row.label, row.compression, row.accuracy)


if __name__ == "__main__":
    main()
