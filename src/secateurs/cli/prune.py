"""`secateurs prune MODEL`: score, cut, write the pruned checkpoint.

A file that says which network it is (or --arch) is pruned with that network, by any score. Any
other safetensors file or folder is pruned as it lies, piece by piece, by scores of the weights.
"""

from pathlib import Path
from typing import Annotated

import typer

from secateurs.cli.commands import (
    Arch,
    Classes,
    DataName,
    Download,
    InChannels,
    Json,
    ModelFile,
    Root,
    Seed,
    Size,
    Source,
    Which,
    say,
    show,
)
from secateurs.cli.prune_order import Cut, Order, Rounds


def prune(
    model: ModelFile,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="The checkpoint to write.", show_default=False),
    ],
    arch: Arch = None,
    score: Annotated[
        str, typer.Option(help="How important is a weight; see `secateurs scores`.")
    ] = "magnitude",
    sparsity: Annotated[
        float | None, typer.Option(help="Share of the weights to cut, such as 0.9.")
    ] = None,
    density: Annotated[float | None, typer.Option(help="Or: share of the weights to keep.")] = None,
    compression: Annotated[float | None, typer.Option(help="Or: total / kept, such as 10.")] = None,
    scope: Annotated[
        str, typer.Option(help="Where to cut how much: global, layer, uniform, erk.")
    ] = "global",
    pattern: Annotated[
        str, typer.Option(help="In which shapes: 2:4, 4x4, kernel, filter, ...")
    ] = "unstructured",
    how: Annotated[str, typer.Option(help="topk, or a random draw such as sample.")] = "topk",
    rounds: Annotated[int, typer.Option(help="How often to score and cut; SynFlow wants 100.")] = 1,
    schedule: Annotated[
        str | None,
        typer.Option(help="Over the rounds: exponential, linear or cubic."),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help="Parameters by glob; '!glob' excludes. Repeatable."),
    ] = None,
    floor: Annotated[
        float, typer.Option(help="Weights (or, below 1, a share) every layer keeps.")
    ] = 1,
    masks_out: Annotated[
        Path | None, typer.Option(help="Write the masks, one bit per weight.")
    ] = None,
    data: DataName = None,
    examples: Annotated[
        int, typer.Option(help="Training examples a score with data looks at.")
    ] = 256,
    root: Root = None,
    download: Download = False,
    in_channels: InChannels = None,
    classes: Classes = None,
    size: Size = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Prune a checkpoint and write it as a plain checkpoint again, with a report.

    Any safetensors file, or folder of them, can be pruned by magnitude without its network.
    """
    cut = Cut(score, sparsity, density, compression, scope, pattern, floor, where)
    order = Order(
        model=model,
        out=out,
        masks_out=masks_out,
        cut=cut,
        rounds=Rounds(how, rounds, schedule),
        which=Which(arch, in_channels, classes, size),
        source=Source(data, root, download),
        examples=examples,
        seed=seed,
    )
    from secateurs.cli.prune_work import carry_out

    done = carry_out(order, quiet=json)
    say(done.to_json()) if json else show(done)
