"""`secateurs inspect FILE`: how sparse a checkpoint or a mask file is."""

from pathlib import Path
from typing import Annotated

import typer

from secateurs.cli.options import Json
from secateurs.errors import DataError


def inspect(
    file: Annotated[Path, typer.Argument(help="A safetensors checkpoint.", show_default=False)],
    all: Annotated[bool, typer.Option("--all", help="Count biases, norms and other vectors too.")] = False,
    json: Json = False,
) -> None:
    """Report the sparsity of every weight in a file. The network need not be known."""
    from rich.console import Console

    from secateurs.masks import sparsity
    from secateurs.train import read_checkpoint

    tensors = read_checkpoint(file).tensors
    counted = {name: t for name, t in tensors.items() if t.is_floating_point() and (all or t.ndim >= 2)}
    if not counted:
        kind = "floating-point tensor" if all else "floating-point weight of two or more dimensions (try --all)"
        raise DataError(f"{file} holds {len(tensors)} tensors, but no {kind}.")
    report = sparsity(counted)
    if json:
        typer.echo(report.to_json())
    else:
        Console().print(report)
