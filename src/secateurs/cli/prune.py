"""`secateurs prune MODEL`: a file or folder of weights is pruned as it lies, piece by piece.

torch is imported inside the functions, so that `--help` does without it.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from secateurs.base.progress import silent
from secateurs.cli.commands import Json, ModelFile, OutFile, Seed, say, show
from secateurs.errors import DataError


def prune(
    model: ModelFile,
    out: OutFile,
    score: Annotated[
        str, typer.Option(help="How important is a weight: magnitude or random.")
    ] = "magnitude",
    sparsity: Annotated[
        float | None, typer.Option(help="Share of the weights to cut, such as 0.9.")
    ] = None,
    density: Annotated[float | None, typer.Option(help="Or: share of the weights to keep.")] = None,
    compression: Annotated[float | None, typer.Option(help="Or: total / kept, such as 10.")] = None,
    scope: Annotated[
        str, typer.Option(help="Where to cut how much: global, layer, row, uniform, erk.")
    ] = "global",
    pattern: Annotated[
        str, typer.Option(help="In which shapes: 2:4, 4x4, kernel, filter, ...")
    ] = "unstructured",
    where: Annotated[
        list[str] | None,
        typer.Option(help="Tensors by glob; '!glob' excludes. Repeatable."),
    ] = None,
    floor: Annotated[
        float, typer.Option(help="Weights (or, below 1, a share) every layer keeps.")
    ] = 1,
    masks_out: Annotated[
        Path | None, typer.Option(help="Write the masks, one bit per weight.")
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Prune a safetensors file, or a folder of them, without its network, and report.

    Names, dtypes and all bytes but the new zeros stay what they are. Scores that run the network
    need Python: `secateurs.prune_`.
    """
    from secateurs.files import is_sparse_file

    if model.is_file() and is_sparse_file(model):
        raise DataError(
            f"{model} is a sparse file, which holds codes and no weights: `secateurs unpack` it"
            " first."
        )
    fields: dict[str, Any] = {
        "score": score,
        "sparsity": sparsity,
        "density": density,
        "compression": compression,
        "scope": scope,
        "pattern": pattern,
        "floor": floor,
        # Without a glob the default rule applies: an empty list would choose nothing.
        "where": where or None,
    }
    from secateurs.llm import prune_file

    progress = silent if json else None
    done = prune_file(model, out, seed=seed, masks_out=masks_out, progress=progress, **fields)
    say(done.report.to_json()) if json else show(done.report)
