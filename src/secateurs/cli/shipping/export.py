"""`secateurs export MODEL`: a checkpoint for onnxruntime, torch.export or a C compiler."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateurs.cli.options import (
    Arch,
    Classes,
    InChannels,
    Json,
    Quiet,
    Size,
    check_outputs,
    say,
    show,
)
from secateurs.cli.shipping.pack import ShippedFile

if TYPE_CHECKING:
    from torch import nn


def export(
    model: ShippedFile,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="The file: .onnx, .pt2 or .c.", show_default=False
        ),
    ],
    arch: Arch = None,
    compact: Annotated[
        bool,
        typer.Option("--compact/--as-it-is", help="Cut dead channels out first."),
    ] = True,
    compiled: Annotated[
        bool,
        typer.Option("--compiled", help="Compile a .pt2 for this kind of processor."),
    ] = False,
    tolerance: Annotated[
        float,
        typer.Option(help="Largest difference, relative to the largest output."),
    ] = 1e-5,
    in_channels: InChannels = None,
    classes: Classes = None,
    size: Size = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a network for another runtime; it is run at once and kept only if it is equal."""
    check_outputs([out], inputs=[model])
    from secateurs.cli.shipping.opened import open_shipped, steps
    from secateurs.ship import export as exported

    with steps(f"exporting {model.name}", quiet=quiet) as step:
        network, example = open_shipped(
            model, arch=arch, in_channels=in_channels, classes=classes, size=size
        )
        # A .pt2 program is fixed: its shapes can no longer be cut.
        if compact and model.suffix != ".pt2":
            network = _smaller(network, example, step)
        done = exported(
            network,
            out,
            example,
            compiled=compiled,
            tolerance=tolerance,
            progress=step,
        )
    say(done.to_json()) if json else show(done)


def _smaller(
    network: "nn.Module", example: Any, step: Callable[[str], None]
) -> "nn.Module":
    """The compacted network; the network itself, and a line, where it cannot be compacted."""
    from secateurs.errors import SecateursError
    from secateurs.ship import compact as compacted

    try:
        return compacted(network, example, progress=step)
    except SecateursError as problem:
        say(f"exported as it is, not compacted: {problem}", err=True)
        return network
