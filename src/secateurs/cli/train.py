"""`secateurs train`: train a network on a data set and write a plain checkpoint.

A new `--method` is one function registered in `METHODS`. An option of its own is a field of `Settings` and an argument
of `train`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secateurs.cli.options import Download, Quiet, Root, Seed, check_outputs, notes
from secateurs.errors import ArgumentError
from secateurs.registry import Registry

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from secateurs.optim import FactorizedSGD
    from secateurs.train import Callback


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options a training method may look at."""

    lr: float
    momentum: float
    weight_decay: float
    seed: int
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
class Method:
    """How to train: the optimizer, callbacks during the run, and what is done to the model at its end."""

    optimizer: "Optimizer"
    callbacks: "tuple[Callback, ...]" = ()
    finish: "Callable[[], None] | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """What a method runs with when nothing else is said."""

    length: str = "20ep"
    batch: int = 128
    lr: float = 0.1


USUAL = {"sgd": Usual(), "adam": Usual(lr=1e-3), "dwf": Usual(length="75ep", batch=256, lr=0.5)}
"""By method; another method runs with those of sgd."""

METHODS: Registry[Callable[["nn.Module", Settings], Method]] = Registry("training method")
"""Training methods by name: `(model, settings) -> Method`. torch is imported inside them."""


@METHODS.register("sgd")
def _sgd(model: "nn.Module", settings: Settings) -> Method:
    from torch.optim import SGD

    lr, momentum, decay = settings.lr, settings.momentum, settings.weight_decay
    return Method(optimizer=SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=decay))


@METHODS.register("adam")
def _adam(model: "nn.Module", settings: Settings) -> Method:
    from torch.optim import AdamW

    return Method(optimizer=AdamW(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay))


@METHODS.register("dwf")
def _dwf(model: "nn.Module", settings: Settings) -> Method:
    from secateurs.optim import FactorizedSGD, forecast
    from secateurs.optim.schedules import schedule
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
        zeros="frozen",
    )
    if settings.target_sparsity is None:
        expected = forecast(
            strength=settings.strength,
            steps=settings.steps,
            lr=settings.rates or settings.lr,
            momentum=settings.momentum,
            schedule=schedule(settings.strength_schedule),
        )
        typer.echo(f"forecast: {expected.sentence}")
    return Method(optimizer=optimizer, finish=lambda: _collapse(optimizer))


def _collapse(optimizer: "FactorizedSGD") -> None:
    report = optimizer.collapse_().report
    typer.echo(
        f"collapsed: {report.total.kept:,} of {report.total.total:,} weights, compression {report.compression:.1f}"
    )


def train(
    arch: Annotated[str, typer.Option(help="The network; see `secateurs models`.", show_default=False)],
    data: Annotated[str, typer.Option(help="The data set; see `secateurs data`.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The checkpoint to write; by default ARCH-METHOD.safetensors.")
    ] = None,
    method: Annotated[str, typer.Option(help="How to train: sgd, adam, or dwf (to sparsity).")] = "sgd",
    length: Annotated[
        str | None, typer.Option(help="How long: epochs (20ep) or steps (2000it). Default 20ep, dwf 75ep.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Examples per step. Default 128, dwf 256.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate. Default 0.1, adam 0.001, dwf 0.5.")] = None,
    momentum: Annotated[float, typer.Option(help="Momentum of sgd.")] = 0.9,
    weight_decay: Annotated[float, typer.Option(help="Weight decay.")] = 1e-4,
    schedule: Annotated[str, typer.Option(help="Learning rate over time: cosine, step or constant.")] = "cosine",
    depth: Annotated[int, typer.Option(help="Factors per weight (dwf).")] = 3,
    strength: Annotated[float, typer.Option(help="Penalty λ on the factors (dwf).")] = 1e-4,
    strength_schedule: Annotated[
        str, typer.Option(help="λ over time: constant, ramp, relax or ramp-hold-relax (dwf).")
    ] = "constant",
    target_sparsity: Annotated[
        float | None, typer.Option(help="Steer λ to reach this share of zeros (dwf).", show_default=False)
    ] = None,
    augment: Annotated[bool, typer.Option("--augment", help="Flips, shifts and rotations.")] = False,
    start: Annotated[
        Path | None, typer.Option("--start", help="A checkpoint to start from instead of a fresh network.")
    ] = None,
    root: Root = None,
    download: Download = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; by default the CPU.")] = None,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Train a network and write a plain checkpoint.

    With --start the weights of a checkpoint are trained on; its zeros stay zero.
    """
    usual = USUAL.get(method, USUAL["sgd"])
    length, batch, lr = length or usual.length, batch or usual.batch, usual.lr if lr is None else lr
    out = _unused(Path(f"{arch}-{method}.safetensors")) if out is None else out
    check_outputs([out], inputs=[start])
    from secateurs import data as sets
    from secateurs.models import build
    from secateurs.prune.step import Step
    from secateurs.random import generator
    from secateurs.train import cosine, fit, load_model_, save_model, step_decay
    from secateurs.train.schedules import Clock, constant

    schedules = {"cosine": cosine(), "step": step_decay(), "constant": constant}
    if schedule not in schedules:
        raise ArgumentError(f"there is no schedule {schedule!r}. Known: {', '.join(schedules)}.")
    prepare = METHODS[method]
    known = sets.load(data, root=root, download=download)
    shape = {"in_channels": known.in_channels, "classes": known.classes, "size": known.size}
    model = build(arch, **shape, generator=generator(seed, "init"))  # type: ignore[arg-type]
    if start is not None:
        load_model_(model, start)
    per_epoch = -(-len(known.train_y) // batch)
    steps = Step.parse(length).iterations(per_epoch)
    settings = Settings(
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        seed=seed,
        depth=depth,
        strength=strength,
        strength_schedule=strength_schedule,
        target_sparsity=target_sparsity,
        steps=steps,
        rates=lambda t: lr * schedules[schedule](Clock(int(t * steps), per_epoch, steps)),
        fresh=start is None,
    )
    plan = prepare(model, settings)
    if start is not None:
        _hold_zeros(model, plan.optimizer)
    result = fit(
        model,
        known,
        optimizer=plan.optimizer,
        length=length,
        batch=batch,
        schedule=schedules[schedule],
        callbacks=plan.callbacks,
        augment=sets.augment if augment else None,
        generator=generator(seed, "train"),
        device=device,
        verbose=not quiet,
    )
    if plan.finish is not None:
        plan.finish()
    save_model(model, out, notes=notes(arch, **shape))
    accuracy = "" if result.accuracy is None else f", test accuracy {100 * result.accuracy:.2f} %"
    typer.echo(f"{out}: {arch} after {result.iterations} steps{accuracy}")


def _unused(path: Path) -> Path:
    """A path nobody asked for is never written over."""
    if path.exists():
        raise ArgumentError(f"{path} is there already: name the checkpoint to write with --out.")
    return path


def _hold_zeros(model: "nn.Module", optimizer: "Optimizer") -> None:
    """A pruned checkpoint stays pruned: what is zero in its weights is held at zero."""
    from secateurs.optim import hold
    from secateurs.parameters import prunable

    masks = {name: parameter.detach() != 0 for name, parameter in prunable(model).items()}
    if not all(bool(mask.all()) for mask in masks.values()):
        hold(model, masks, optimizer)
