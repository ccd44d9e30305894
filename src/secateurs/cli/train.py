"""`secateurs train`: train a network on a data set and write a plain checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secateurs.cli.methods import METHODS, USUAL, Settings, own
from secateurs.cli.options import Download, Quiet, Root, Seed, check_outputs, notes
from secateurs.errors import ArgumentError

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


def train(
    arch: Annotated[
        str,
        typer.Option(help="The network; see `secateurs models`.", show_default=False),
    ],
    data: Annotated[
        str,
        typer.Option(help="The data set; see `secateurs data`.", show_default=False),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The checkpoint to write; by default ARCH-METHOD.safetensors.",
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help="How to train: sgd, adam, or dwf (to sparsity).")
    ] = "sgd",
    length: Annotated[
        str | None,
        typer.Option(
            help="How long: epochs (20ep) or steps (2000it). Default 20ep, dwf 75ep."
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Examples per step. Default 128, dwf 256.")
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate. Default 0.1, adam 0.001, dwf 0.5."),
    ] = None,
    momentum: Annotated[
        float | None, typer.Option(help="Momentum (sgd, dwf). Default 0.9.")
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="Weight decay (sgd, adam). Default 1e-4.")
    ] = None,
    schedule: Annotated[
        str, typer.Option(help="Learning rate over time: cosine, step or constant.")
    ] = "cosine",
    depth: Annotated[
        int | None, typer.Option(help="Factors per weight (dwf). Default 3.")
    ] = None,
    strength: Annotated[
        float | None, typer.Option(help="Penalty λ on the factors (dwf). Default 1e-4.")
    ] = None,
    strength_schedule: Annotated[
        str | None,
        typer.Option(
            help="λ over time: constant (default), ramp, relax or ramp-hold-relax (dwf)."
        ),
    ] = None,
    target_sparsity: Annotated[
        float | None,
        typer.Option(
            help="Steer λ to reach this share of zeros (dwf).", show_default=False
        ),
    ] = None,
    augment: Annotated[
        bool, typer.Option("--augment", help="Flips, shifts and rotations.")
    ] = False,
    start: Annotated[
        Path | None,
        typer.Option(
            "--start", help="A checkpoint to start from instead of a fresh network."
        ),
    ] = None,
    root: Root = None,
    download: Download = False,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, ...; by default the CPU.")
    ] = None,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Train a network and write a plain checkpoint.

    With --start the weights of a checkpoint are trained on; its zeros stay zero.
    """
    prepare, usual = METHODS[method], USUAL.get(method, USUAL["sgd"])
    options = own(
        method,
        momentum=momentum,
        weight_decay=weight_decay,
        depth=depth,
        strength=strength,
        strength_schedule=strength_schedule,
        target_sparsity=target_sparsity,
    )
    length, lr = (
        usual.length if length is None else length,
        usual.lr if lr is None else lr,
    )
    batch = usual.batch if batch is None else batch
    if batch < 1:
        raise ArgumentError(f"--batch {batch}: a step needs at least one example.")
    out = _unused(Path(f"{arch}-{method}.safetensors")) if out is None else out
    check_outputs([out], inputs=[start])
    from secateurs import data as sets
    from secateurs.models import build
    from secateurs.random import generator
    from secateurs.step import Step
    from secateurs.train import (
        cosine,
        evaluate,
        fit_,
        load_model_,
        save_model,
        step_decay,
    )
    from secateurs.train.schedules import Clock, constant

    schedules = {"cosine": cosine(), "step": step_decay(), "constant": constant}
    if schedule not in schedules:
        raise ArgumentError(
            f"there is no schedule {schedule!r}. Known: {', '.join(schedules)}."
        )
    known = sets.load(data, root=root, download=download)
    shape = {
        "in_channels": known.in_channels,
        "classes": known.classes,
        "size": known.size,
    }
    model = build(arch, **shape, generator=generator(seed, "init"))  # type: ignore[arg-type]
    if start is not None:
        load_model_(model, start)
    per_epoch = -(-len(known.train_y) // batch)
    steps = Step.parse(length).iterations(per_epoch)
    settings = Settings(
        lr=lr,
        seed=seed,
        steps=steps,
        rates=lambda t: (
            lr * schedules[schedule](Clock(int(t * steps), per_epoch, steps))
        ),
        fresh=start is None,
        **options,
    )
    plan = prepare(model, settings)
    if start is not None:
        _hold_zeros(model, plan.optimizer)
    result = fit_(
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
    reached = result.accuracy
    if plan.finish is not None:
        plan.finish()  # changes the weights: what is printed is measured on what is written
        reached = None if reached is None else evaluate(model, known).accuracy
    save_model(model, out, notes=notes(arch, **shape))
    accuracy = "" if reached is None else f", test accuracy {100 * reached:.2f} %"
    typer.echo(f"{out}: {arch} after {result.iterations} steps{accuracy}")


def _unused(path: Path) -> Path:
    """A path nobody asked for is never written over."""
    if path.exists():
        raise ArgumentError(
            f"{path} is there already: name the checkpoint to write with --out."
        )
    return path


def _hold_zeros(model: "nn.Module", optimizer: "Optimizer") -> None:
    """A pruned checkpoint stays pruned: what is zero in its weights is held at zero."""
    from secateurs.optim import hold
    from secateurs.parameters import prunable

    masks = {
        name: parameter.detach() != 0 for name, parameter in prunable(model).items()
    }
    if not all(bool(mask.all()) for mask in masks.values()):
        hold(model, masks, optimizer)
