"""`secateurs certify DENSE SPARSE`: how far the changed network can depart from the dense one."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateurs.cli.options import (
    Arch,
    Classes,
    DataName,
    Download,
    InChannels,
    Json,
    Root,
    Seed,
    Size,
    open_model,
    show,
)
from secateurs.errors import ArgumentError

if TYPE_CHECKING:
    from secateurs.data import Dataset
    from secateurs.paths import Certificate


def certify(
    dense: Annotated[
        Path,
        typer.Argument(
            help="The checkpoint of the dense network.", show_default=False
        ),
    ],
    sparse: Annotated[
        Path,
        typer.Argument(
            help="The changed one: pruned, rounded, tuned.", show_default=False
        ),
    ],
    arch: Arch = None,
    radius: Annotated[
        float, typer.Option(help="Half the width of the ball around each input.")
    ] = 0.004,
    data: DataName = None,
    points: Annotated[
        int,
        typer.Option(help="With --data: how many test inputs to put balls around."),
    ] = 100,
    method: Annotated[
        list[str] | None, typer.Option(help="One method, repeatable; by default all.")
    ] = None,
    rounding: Annotated[
        bool, typer.Option(help="Cover float32 evaluation of both networks too.")
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Option(help="How long it may take; the best bound by then is given."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Keep the certificate in this file, for `recheck`."),
    ] = None,
    alpha: Annotated[
        float,
        typer.Option(help="With --data: 1 − confidence of the change rate's limit."),
    ] = 0.05,
    beta: Annotated[
        float,
        typer.Option(
            help="With --data: how rarely a fresh deviation may exceed the level."
        ),
    ] = 0.05,
    root: Root = None,
    download: Download = False,
    in_channels: InChannels = None,
    classes: Classes = None,
    size: Size = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Bound the largest difference of two networks of one structure, for every input of a region.

    The region is a ball around each of some test inputs (--data), or around the zero input.
    """
    import torch

    from secateurs.paths import certify as prove
    from secateurs.random import generator

    if points < 1:
        raise ArgumentError(f"--points {points}: at least one input is needed.")
    options: dict[str, Any] = {
        "arch": arch,
        "in_channels": in_channels,
        "classes": classes,
        "size": size,
    }
    opened = [open_model(path, **options) for path in (dense, sparse)]
    models, notes = zip(*opened, strict=True)
    known = None if data is None else _load(data, root, download)
    side = int(notes[0]["size"])
    inputs = (
        torch.zeros(1, int(notes[0]["in_channels"]), side, side)
        if known is None
        else known.test_x[:points]
    )
    held: dict[str, Any] = (
        {}
        if known is None
        else {"data": (known.test_x, known.test_y), "alpha": alpha, "beta": beta}
    )
    certificate = prove(
        models[0].eval(),
        models[1].eval(),
        around=inputs,
        radius=radius,
        methods=method or "auto",
        rounding=True if rounding else "auto",
        seconds=seconds,
        # Nobody reads progress in a log, and scripts parse what is left.
        progress=_tell if sys.stderr.isatty() else None,
        generator=generator(seed, "certify"),
        **held,
    )
    if save is not None:
        certificate.save(save)
    _show(certificate, known, inputs, json=json)


def recheck(
    certificate: Annotated[
        Path,
        typer.Argument(
            help="What `certify --save` (or --json) wrote.", show_default=False
        ),
    ],
    dense: Annotated[
        Path,
        typer.Argument(
            help="The checkpoint of the dense network.", show_default=False
        ),
    ],
    sparse: Annotated[
        Path,
        typer.Argument(help="The checkpoint of the changed one.", show_default=False),
    ],
    arch: Arch = None,
    in_channels: InChannels = None,
    classes: Classes = None,
    size: Size = None,
) -> None:
    """Prove a kept certificate again, from the two networks alone.

    Exits with 1 where it does not hold: other weights, another graph, or a bound that was too
    small.
    """
    from secateurs.paths import recheck as prove_again

    options: dict[str, Any] = {
        "arch": arch,
        "in_channels": in_channels,
        "classes": classes,
        "size": size,
    }
    models = [open_model(path, **options)[0].eval() for path in (dense, sparse)]
    tell = _tell if sys.stderr.isatty() else None
    result = prove_again(certificate, models[0], models[1], progress=tell)
    typer.echo(str(result))
    # An exit code, so that a script can stop where a certificate no longer holds.
    if not result.holds:
        raise typer.Exit(1)


def _tell(text: str) -> None:
    """Progress, for whoever waits at a terminal."""
    typer.echo(text, err=True)


def _load(name: str, root: Path | None, download: bool) -> "Dataset":
    from secateurs.data import load

    return load(name, root=root, download=download)


def _show(
    certificate: "Certificate", known: "Dataset | None", inputs: Any, *, json: bool
) -> None:
    if json:
        typer.echo(certificate.to_json())
        return
    show(certificate)
    if known is not None:
        share = certificate.certified_share(inputs)
        typer.echo(
            f"Certified share: {share:.1%} of {len(inputs)} test inputs cannot change their class."
        )
