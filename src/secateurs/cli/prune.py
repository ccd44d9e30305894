"""`secateurs prune MODEL`: score, cut, write the pruned checkpoint."""

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

    from secateurs.prune import Recipe


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
        str | None, typer.Option(help="Over the rounds: exponential, linear or cubic.")
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
    """Prune a checkpoint and write it as a plain checkpoint again, with a report."""
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
