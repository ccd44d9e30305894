"""`secateurs measure MODEL`: what compaction and the fast path are worth on this machine."""

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


def measure(
    model: ShippedFile,
    arch: Arch = None,
    batch: Annotated[
        list[int] | None, typer.Option(help="Samples a call; repeatable.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="How long each batch size is measured.")
    ] = 2.0,
    threads: Annotated[int | None, typer.Option(help="How many threads.")] = None,
    csv: Annotated[
        Path | None, typer.Option(help="Write the table as CSV, too.")
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(help="Write bars as a picture, too.")
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast/--no-fast", help="The fast path, too.")
    ] = True,
    in_channels: InChannels = None,
    classes: Classes = None,
    size: Size = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare a network as it is, compacted and on the fast path; "no gain" where there is none."""
    check_outputs([csv, svg], inputs=[model])
    import torch

    from secateurs.cli.shipping.opened import open_shipped, steps
    from secateurs.ship import measure as measured

    if threads is not None:
        torch.set_num_threads(threads)
    with steps(f"measuring {model.name}", quiet=quiet) as step:
        network, example = open_shipped(
            model, arch=arch, in_channels=in_channels, classes=classes, size=size
        )
        forms = _forms(network, example, fast, step)
        # One sample is latency, 64 are throughput, and sparsity pays differently for
        # each.
        sizes = tuple(batch or (1, 64))
        table = measured(
            forms, example, batch_sizes=sizes, seconds=seconds, progress=step
        )
    for path in (csv, svg):
        if path is not None:
            table.save(path)
    say(table.to_json()) if json else show(table)


def _forms(
    network: "nn.Module", example: Any, fast: bool, step: Any
) -> "dict[str, nn.Module]":
    """The model and what can be made of it; what cannot is said and left out."""
    from secateurs.errors import SecateursError
    from secateurs.ship import accelerate, compact

    forms = {"as it is": network}
    makers: dict[str, Callable[[], nn.Module]] = {
        "compact": lambda: compact(network, example, progress=step)
    }
    if fast:
        makers["fast"] = lambda: accelerate(
            # Kept even where it does not pay: the table is there to show that.
            network,
            example,
            keep="always",
            progress=step,
        )
    for name, make in makers.items():
        try:
            forms[name] = make()
        except SecateursError as error:
            say(f"{name}: left out, {error}", err=True)
    return forms
