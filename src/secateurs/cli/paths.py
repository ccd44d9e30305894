"""`secateurs paths FILE`: path norms of a checkpoint, and the path mass and dead channels of every
layer.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from secateurs.cli.commands import (
    Arch,
    Classes,
    InChannels,
    Json,
    ModelFile,
    Size,
    open_model,
    say,
    show,
)

if TYPE_CHECKING:
    from rich.table import Table

    from secateurs.paths import Liveness, PathNorm


def paths(
    file: ModelFile,
    arch: Arch = None,
    classes: Classes = None,
    in_channels: InChannels = None,
    size: Size = None,
    q: Annotated[float, typer.Option(help="The exponent of the norm, at least 1.")] = 1.0,
    json: Json = False,
) -> None:
    """Path norm of a network, the share of path mass in each layer, dead channels, and layers that
    are lost.
    """
    import torch

    from secateurs.graph import capture
    from secateurs.paths import liveness, path_norm

    model, made = open_model(file, arch=arch, in_channels=in_channels, classes=classes, size=size)
    side = int(made["size"])
    graph = capture(model.eval(), torch.zeros(1, int(made["in_channels"]), side, side))
    norm, alive = path_norm(model, graph, q=q, split=True), liveness(model, graph)
    say(_json(norm, alive)) if json else show(_table(norm, alive))


def _table(norm: "PathNorm", alive: "Liveness") -> "Table":
    from rich.markup import escape
    from rich.table import Table

    title = f"log2 of the path norm (q = {norm.q:g}): {norm.log2:.3f}"
    if norm.inputs is not None and norm.biases is not None:
        title += f", from inputs {norm.inputs.log2:.3f}, from biases {norm.biases.log2:.3f}"
    state = (
        "collapsed: the output does not depend on the input"
        if alive.collapsed
        else "paths reach the output"
    )
    table = Table(title=title, caption=f"{state}; {alive.dead} dead channels")
    for column in ("layer", "path mass", "channels", "dead", "constant", "unused"):
        table.add_column(column, justify="left" if column == "layer" else "right")
    for layer in alive.layers:
        dead, constant, unused = (
            len(layer.dead),
            len(layer.constant),
            len(layer.unused),
        )
        table.add_row(
            escape(layer.name),
            f"{layer.mass:.2%}",
            *map(str, (layer.channels, dead, constant, unused)),
        )
    return table


def _json(norm: "PathNorm", alive: "Liveness") -> str:
    from json import dumps

    parts = {
        name: part.log2
        for name, part in (("inputs", norm.inputs), ("biases", norm.biases))
        if part is not None
    }
    log2 = {
        # A norm of 0 has the logarithm minus infinity, which JSON cannot hold.
        name: value if value > float("-inf") else None
        for name, value in {"all": norm.log2, **parts}.items()
    }
    return dumps(
        {
            "q": norm.q,
            "log2_norm": log2,
            "assumptions": list(norm.assumptions),
            **alive.as_dict(),
        }
    )
