"""`secateurs inspect FILE`: how sparse a checkpoint or a mask file is."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secateurs.cli.options import Json, show
from secateurs.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor


def inspect(
    file: Annotated[
        Path, typer.Argument(help="A safetensors checkpoint or mask file.", show_default=False)
    ],
    all: Annotated[
        bool, typer.Option("--all", help="Count biases, norms and other vectors too.")
    ] = False,
    json: Json = False,
) -> None:
    """Report the sparsity of every weight in a file. The network need not be known."""
    from secateurs.masks import sparsity

    report = sparsity(_counted(file, all=all))
    typer.echo(report.to_json()) if json else show(report)


def _counted(file: Path, *, all: bool) -> "dict[str, Tensor]":
    """The masks of a mask file, or the weights of any other safetensors file."""
    from secateurs.masks import load_masks
    from secateurs.masks.files.header import FORMAT
    from secateurs.train import read_checkpoint

    held = read_checkpoint(file)
    if held.notes.get("format") == FORMAT:
        return load_masks(file)
    counted = {
        name: t
        for name, t in held.tensors.items()
        if t.is_floating_point() and (all or t.ndim >= 2)
    }
    if not counted:
        kind = (
            "floating-point tensor"
            if all
            else "floating-point weight of two or more dimensions (try --all)"
        )
        raise DataError(f"{file} holds {len(held.tensors)} tensors, but no {kind}.")
    return counted
