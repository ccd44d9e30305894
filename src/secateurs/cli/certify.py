"""`secateurs certify DENSE SPARSE`: how far the changed network can depart from the dense one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secateurs.cli.asked import Source, Which
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
    say,
    show,
)
from secateurs.cli.proving.how import How, proven

if TYPE_CHECKING:
    pass


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
    how = How(radius, points, method, rounding, seconds, alpha, beta, seed)
    known = Source(data, root, download).loaded()
    which = Which(arch, in_channels, classes, size)
    certificate, inputs = proven(which, dense, sparse, known, how)
    if save is not None:
        certificate.save(save)
    if json:
        say(certificate.to_json())
        return
    show(certificate)
    if known is not None:
        share = certificate.certified_share(inputs)
        say(
            f"Certified share: {share:.1%} of {len(inputs)} test inputs cannot change their class."
        )
