"""`secateurs train`: train a network on a data set and write a plain checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

from secateurs.cli.commands import Download, Quiet, Root, Seed, check_outputs, notes, say
from secateurs.cli.train_order import options_of_method, usual_order
from secateurs.errors import ArgumentError


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
        typer.Option(help="How long: epochs (20ep) or steps (2000it). Default 20ep, dwf 75ep."),
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
    depth: Annotated[int | None, typer.Option(help="Factors per weight (dwf). Default 3.")] = None,
    strength: Annotated[
        float | None,
        typer.Option(help="Penalty λ on the factors (dwf). Default 1e-4."),
    ] = None,
    strength_schedule: Annotated[
        str | None,
        typer.Option(help="λ over time: constant (default), ramp, relax or ramp-hold-relax (dwf)."),
    ] = None,
    target_sparsity: Annotated[
        float | None,
        typer.Option(help="Steer λ to reach this share of zeros (dwf).", show_default=False),
    ] = None,
    augment: Annotated[
        bool, typer.Option("--augment", help="Flips, shifts and rotations.")
    ] = False,
    start: Annotated[
        Path | None,
        typer.Option("--start", help="A checkpoint to start from instead of a fresh network."),
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
    # Checked before torch is loaded, so that a misspelt option is answered at once.
    options = options_of_method(
        method,
        momentum=momentum,
        weight_decay=weight_decay,
        depth=depth,
        strength=strength,
        strength_schedule=strength_schedule,
        target_sparsity=target_sparsity,
    )
    order = usual_order(
        *(method, length, batch, lr),
        schedule=schedule,
        augment=augment,
        start=start,
        seed=seed,
        options=options,
    )
    out = _refuse_existing(Path(f"{arch}-{method}.safetensors")) if out is None else out
    check_outputs([out], inputs=[start])
    from secateurs.cli.train_work import carry_out
    from secateurs.data import load
    from secateurs.train import save_model

    known = load(data, root=root, download=download)
    trained = carry_out(order, arch, known, device=device, verbose=not quiet)
    save_model(trained.model, out, notes=notes(arch, **trained.shape))
    say(f"{out}: {arch} {trained.said}")


def _refuse_existing(path: Path) -> Path:
    """A path nobody asked for is never written over."""
    if path.exists():
        raise ArgumentError(f"{path} exists already: name the checkpoint to write with --out.")
    return path
