"""`secateurs prune MODEL`: score, cut, write the pruned checkpoint.

A file that says which network it is (or --arch) is pruned with that network, by any score. Any
other safetensors file or folder is pruned as it lies, piece by piece, by scores of the weights.
"""

import sys
from collections.abc import Mapping
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
    ModelFile,
    Root,
    Seed,
    Size,
    check_outputs,
    open_model,
    show,
)
from secateurs.errors import ArgumentError

if TYPE_CHECKING:
    from torch import nn

    from secateurs.prune import PrunedFile, Recipe


def prune(
    model: ModelFile,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="The checkpoint to write.", show_default=False
        ),
    ],
    arch: Arch = None,
    score: Annotated[
        str, typer.Option(help="How important is a weight; see `secateurs scores`.")
    ] = "magnitude",
    sparsity: Annotated[
        float | None, typer.Option(help="Share of the weights to cut, such as 0.9.")
    ] = None,
    density: Annotated[
        float | None, typer.Option(help="Or: share of the weights to keep.")
    ] = None,
    compression: Annotated[
        float | None, typer.Option(help="Or: total / kept, such as 10.")
    ] = None,
    scope: Annotated[
        str, typer.Option(help="Where to cut how much: global, layer, uniform, erk.")
    ] = "global",
    pattern: Annotated[
        str, typer.Option(help="In which shapes: 2:4, 4x4, kernel, filter, ...")
    ] = "unstructured",
    how: Annotated[
        str, typer.Option(help="topk, or a random draw such as sample.")
    ] = "topk",
    rounds: Annotated[
        int, typer.Option(help="How often to score and cut; SynFlow wants 100.")
    ] = 1,
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
    if not _has_network(model, arch):
        needless = {
            "masks-out": masks_out,
            "data": data,
            "rounds": rounds != 1 or None,
            "schedule": schedule,
            "how": None if how == "topk" else how,
            "in-channels": in_channels,
            "classes": classes,
            "size": size,
        }
        _refuse_needless(model, needless)
        done = _pruned_file(
            model,
            out,
            quiet=json,
            score=score,
            sparsity=sparsity,
            density=density,
            compression=compression,
            scope=scope,
            pattern=pattern,
            floor=floor,
            where=where or None,
            seed=seed,
        )
        typer.echo(done.report.to_json()) if json else show(done.report)
        return
    check_outputs([out, masks_out], inputs=[model])
    from secateurs.masks import save_masks
    from secateurs.prune import Recipe, prune_
    from secateurs.random import generator
    from secateurs.train import save_model

    recipe = Recipe(
        score=score,
        sparsity=sparsity,
        density=density,
        compression=compression,
        scope=scope,
        pattern=pattern,
        how=how,
        rounds=rounds,
        schedule=schedule,
        where=where or None,
        floor=floor,
    )
    network, notes = open_model(
        model, arch=arch, in_channels=in_channels, classes=classes, size=size
    )
    given = _given(
        recipe,
        network,
        notes,
        data=data,
        examples=examples,
        root=root,
        download=download,
    )
    pruned = prune_(network, recipe, generator=generator(seed, "prune"), **given)
    save_model(network, out, notes=notes)
    if masks_out is not None:
        save_masks(pruned.masks, masks_out)
    typer.echo(pruned.to_json()) if json else show(pruned)


def _has_network(model: Path, arch: str | None) -> bool:
    """Whether the network is known, by --arch or by what the file says of itself."""
    from secateurs.prune.on_disk.checkpoint import open_stored
    from secateurs.ship.files import is_sparse_file

    if model.is_file() and is_sparse_file(model):
        return True
    # A pickle is refused here, with the lines that convert it, and so is what is not there.
    return arch is not None or "arch" in open_stored(model).notes


def _refuse_needless(model: Path, options: Mapping[str, object]) -> None:
    """Options that only mean something with the network."""
    given = [f"--{name}" for name, value in options.items() if value is not None]
    if given:
        raise ArgumentError(
            f"{model} does not say which network it is: add --arch NAME (see `secateurs models`),"
            f" or leave out {', '.join(given)} to prune the file by its weights alone."
        )


def _pruned_file(
    model: Path, out: Path, *, quiet: bool, **options: Any
) -> "PrunedFile":
    """Prune without the network; on a terminal the name of the tensor in work is shown."""
    from secateurs.prune import prune_file

    shown = sys.stderr.isatty() and not quiet
    clear = "\r\x1b[2K"

    def say(name: str) -> None:
        if shown:
            sys.stderr.write(f"{clear}{name}")
            sys.stderr.flush()

    try:
        return prune_file(model, out, progress=say, **options)
    finally:
        if shown:
            # The line is wiped, so that the table starts on a clean one.
            sys.stderr.write(clear)


def _given(
    recipe: "Recipe",
    network: "nn.Module",
    notes: dict[str, str],
    *,
    data: str | None,
    examples: int,
    root: Path | None,
    download: bool,
) -> dict[str, Any]:
    """What the score looks at: training examples with cross-entropy, or an example of the right
    shape.
    """
    import torch
    import torch.nn.functional as F

    from secateurs.data import load
    from secateurs.scores import SCORES

    if data is not None:
        known = load(data, root=root, download=download)
        batch = known.train_x[:examples], known.train_y[:examples]
        return {"batch": batch, "loss": F.cross_entropy, "example": batch[0][:1]}
    if SCORES[recipe.score].needs & {"batch", "loss"}:
        raise ArgumentError(
            f"the score {recipe.score!r} looks at data: add --data NAME (see `secateurs data`)."
        )
    side = int(notes["size"])
    return {"example": torch.zeros(1, int(notes["in_channels"]), side, side)}
