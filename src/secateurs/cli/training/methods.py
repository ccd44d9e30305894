"""How `secateurs train` trains: its methods by name.

A new `--method` is one function registered in `METHODS`. An option of its own is a field of
`settings.Settings`, an argument of `train`, and a name in its `Usual.takes` (usual.py).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from secateurs.cli.options import say
from secateurs.cli.training.settings import Method, Settings
from secateurs.registry import Registry

if TYPE_CHECKING:
    from torch import nn

    from secateurs.optim import FactorizedSGD


METHODS: Registry[Callable[["nn.Module", Settings], Method]] = Registry(
    "training method"
)
"""Training methods by name: `(model, settings) -> Method`. torch is imported inside them."""


@METHODS.register("sgd")
def _sgd(model: "nn.Module", settings: Settings) -> Method:
    from torch.optim import SGD

    lr, momentum, decay = settings.lr, settings.momentum, settings.weight_decay
    return Method(
        optimizer=SGD(
            model.parameters(), lr=lr, momentum=momentum, weight_decay=decay
        )
    )


@METHODS.register("adam")
def _adam(model: "nn.Module", settings: Settings) -> Method:
    from torch.optim import AdamW

    return Method(
        optimizer=AdamW(
            model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay
        )
    )


@METHODS.register("dwf")
def _dwf(model: "nn.Module", settings: Settings) -> Method:
    from secateurs.optim import FactorizedSGD, forecast
    from secateurs.optim.factorized.strength.schedules import schedule
    from secateurs.random import generator

    optimizer = FactorizedSGD(
        model.named_parameters(),
        lr=settings.lr,
        momentum=settings.momentum,
        depth=settings.depth,
        strength=settings.strength,
        steps=settings.steps,
        schedule=settings.strength_schedule,
        target_sparsity=settings.target_sparsity,
        generator=generator(settings.seed, "factors"),
        init="dwf" if settings.fresh else "pretrained",
        # Zeros of a pruned checkpoint stay zero.
        zeros="frozen",
    )
    # Steered to a target, λ is not the one given, and a forecast for that one would
    # mislead.
    if settings.target_sparsity is None:
        expected = forecast(
            strength=settings.strength,
            steps=settings.steps,
            lr=settings.rates or settings.lr,
            momentum=settings.momentum,
            schedule=schedule(settings.strength_schedule),
        )
        say(f"forecast: {expected.sentence}")
    return Method(optimizer=optimizer, finish=lambda: _collapse(optimizer))


def _collapse(optimizer: "FactorizedSGD") -> None:
    report = optimizer.collapse_().report
    say(
        f"collapsed: {report.total.kept:,} of {report.total.total:,} weights, compression"
        f" {report.compression:.1f}"
    )
