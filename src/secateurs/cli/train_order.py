"""How `secateurs train` trains: its methods by name.

A new `--method` is one function registered in `METHODS`. An option of its own is a field of
`MethodOptions`, an argument of `train`, and a name in its `Usual.takes`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secateurs.cli.commands import say
from secateurs.errors import ArgumentError
from secateurs.registry import Registry

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from secateurs.optim import FactorizedSGD
    from secateurs.train import Callback


# What a training method may use, and what it returns.


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodOptions:
    """The options a training method may use."""

    lr: float
    seed: int
    momentum: float = 0.9
    weight_decay: float = 1e-4
    depth: int = 3
    strength: float = 1e-4
    strength_schedule: str = "constant"
    target_sparsity: float | None = None
    steps: int = 1
    rates: "Callable[[float], float] | None" = None
    """Learning rate as a function of the progress."""
    fresh: bool = True
    """Whether the weights are new, or those of a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMethod:
    """How to train: the optimizer, callbacks during the run, and what is done to the model at its
    end.
    """

    optimizer: "Optimizer"
    callbacks: "tuple[Callback, ...]" = ()
    finish: "Callable[[], None] | None" = None


METHODS: Registry[Callable[["nn.Module", MethodOptions], TrainingMethod]] = Registry(
    "training method"
)
"""Training methods by name: `(model, settings) -> TrainingMethod`; torch is imported inside."""


@METHODS.register("sgd")
def _sgd(model: "nn.Module", settings: MethodOptions) -> TrainingMethod:
    from torch.optim import SGD

    lr, momentum, decay = settings.lr, settings.momentum, settings.weight_decay
    return TrainingMethod(
        optimizer=SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=decay)
    )


@METHODS.register("adam")
def _adam(model: "nn.Module", settings: MethodOptions) -> TrainingMethod:
    from torch.optim import AdamW

    return TrainingMethod(
        optimizer=AdamW(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    )


@METHODS.register("dwf")
def _dwf(model: "nn.Module", settings: MethodOptions) -> TrainingMethod:
    from secateurs.optim import FactorizedSGD, forecast
    from secateurs.optim.factorized.schedules import schedule
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
    # With a target, λ is steered and is not the one given: a forecast for the given one would
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
    return TrainingMethod(optimizer=optimizer, finish=lambda: _collapse(optimizer))


def _collapse(optimizer: "FactorizedSGD") -> None:
    report = optimizer.collapse_().report
    say(
        f"collapsed: {report.total.kept:,} of {report.total.total:,} weights, compression"
        f" {report.compression:.1f}"
    )


# The defaults of each training method, and its own options.


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """The defaults of a method, and its own options."""

    length: str = "20ep"
    batch: int = 128
    lr: float = 0.1
    takes: frozenset[str] = frozenset({"momentum", "weight_decay"})


FACTORS = frozenset({"momentum", "depth", "strength", "strength_schedule", "target_sparsity"})


USUAL = {
    "sgd": Usual(),
    "adam": Usual(lr=1e-3, takes=frozenset({"weight_decay"})),
    "dwf": Usual(length="75ep", batch=256, lr=0.5, takes=FACTORS),
}
"""By method; another method runs with those of sgd."""


def options_of_method(method: str, **options: Any) -> dict[str, Any]:
    """The options that were given; an error names those that this method does not use."""
    given = {name: value for name, value in options.items() if value is not None}
    # An option without effect is refused: its user expects an effect.
    idle = sorted(given.keys() - USUAL.get(method, Usual()).takes)
    if idle:
        written = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
        users = ", ".join(name for name, usual in USUAL.items() if usual.takes & set(idle))
        raise ArgumentError(f"{written}: --method {method} does not use it ({users} would).")
    return given


# The arguments of `secateurs train`, checked before torch is loaded.

SCHEDULES = ("cosine", "step", "constant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A training: which method, how long, in which steps, from which weights."""

    method: str
    length: str
    batch: int
    lr: float
    schedule: str = "cosine"
    augment: bool = False
    start: Path | None = None
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    """The method's own options, as `options_of_method` collected them."""

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ArgumentError(f"--batch {self.batch}: a step needs at least one example.")
        if self.schedule not in SCHEDULES:
            raise ArgumentError(
                f"there is no schedule {self.schedule!r}. Known: {', '.join(SCHEDULES)}."
            )


def usual_order(
    method: str, length: str | None, batch: int | None, lr: float | None, **more: Any
) -> Order:
    """An order in which everything not given is the default of the method."""
    METHODS[method]  # an unknown method is refused with its neighbours, not taken for sgd
    # A method that is registered elsewhere has no usual numbers of its own.
    usual = USUAL.get(method, USUAL["sgd"])
    return Order(
        method=method,
        length=usual.length if length is None else length,
        batch=usual.batch if batch is None else batch,
        lr=usual.lr if lr is None else lr,
        **more,
    )
