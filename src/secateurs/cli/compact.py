"""`secateurs compact MODEL`: cut dead channels out of a checkpoint, exactly."""

from pathlib import Path
from typing import Annotated

import typer

from secateurs.cli.opening import open_model
from secateurs.cli.options import (
    Arch,
    Classes,
    InChannels,
    Json,
    ModelFile,
    Quiet,
    Size,
    check_outputs,
    say,
    show,
)


def compact(
    model: ModelFile,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="The checkpoint to write.", show_default=False
        ),
    ],
    arch: Arch = None,
    masks: Annotated[
        Path | None,
        typer.Option(help="A mask file, if the masks are not applied yet."),
    ] = None,
    macs: Annotated[
        float | None,
        typer.Option(
            help="First prune whole channels down to this share of multiplications."
        ),
    ] = None,
    multiple_of: Annotated[
        int, typer.Option(help="Round the channels of every layer up to a multiple.")
    ] = 1,
    in_channels: InChannels = None,
    classes: Classes = None,
    size: Size = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Cut dead channels and neurons out of a checkpoint; its outputs stay what they were.

    The file that is written has the same names with smaller shapes.
    """
    check_outputs([out], inputs=[model, masks])
    import torch

    from secateurs.masks import apply_, load_masks
    from secateurs.prune import prune_channels_
    from secateurs.ship.compaction import compaction
    from secateurs.train import save_model

    network, notes = open_model(
        model, arch=arch, in_channels=in_channels, classes=classes, size=size
    )
    # Batch norm is a fixed scale in this mode only, and only then can a channel be
    # constant.
    network.eval()
    side = int(notes["size"])
    example = torch.zeros(1, int(notes["in_channels"]), side, side)
    # Masks first: what they drop is dead by the time channels are looked for.
    if masks is not None:
        apply_(network, load_masks(masks))
    if macs is not None:
        prune_channels_(network, example, macs=macs)
    done = compaction(
        network, example, multiple_of=multiple_of, progress=None if quiet else _say
    )
    save_model(done.model, out, notes=notes)
    say(done.to_json()) if json else show(done)


def _say(step: str) -> None:
    say(f"compact: {step}", err=True)
