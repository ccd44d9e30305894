"""`secateurs generalization FILE --data NAME`: what the length of a sparse network proves about its
test error.
"""

from typing import Annotated

import typer

from secateurs.cli.commands import (
    Arch,
    Classes,
    DataName,
    DataSource,
    Download,
    InChannels,
    Json,
    ModelFile,
    Root,
    Seed,
    Size,
    Which,
    say,
    show,
)
from secateurs.errors import ArgumentError


def generalization(
    file: ModelFile,
    data: DataName = None,
    arch: Arch = None,
    confidence: Annotated[
        float, typer.Option(help="With which probability the bound holds, over the samples.")
    ] = 0.95,
    levels: Annotated[
        int | None,
        typer.Option(help="How many different values the weights take; by default the best."),
    ] = None,
    tune: Annotated[
        int,
        typer.Option(help="Steps of training for the values after the weights share them."),
    ] = 300,
    alternatives: Annotated[
        int,
        typer.Option(help="Among how many architectures the data were looked at to choose."),
    ] = 1,
    seed: Seed = 0,
    classes: Classes = None,
    in_channels: InChannels = None,
    size: Size = None,
    root: Root = None,
    download: Download = False,
    json: Json = False,
) -> None:
    """Bound the test error of a sparse network by its length as a message.

    The file may be a sparse file or a checkpoint. Each part of the message is listed with its bits.
    """
    from secateurs.paths import description_length
    from secateurs.random import generator

    known = DataSource(data, root, download).loaded()
    if known is None:
        raise ArgumentError(
            "the bound counts errors on the training samples: add --data NAME (see `secateurs"
            " data`)."
        )
    model, _ = Which(arch, in_channels, classes, size).opened(file)
    found = description_length(
        model,
        known.train_x,
        known.train_y,
        confidence=confidence,
        levels=levels,
        alternatives=alternatives,
        tune=tune,
        generator=generator(seed, "generalization"),
    )
    say(found.to_json()) if json else show(found)
