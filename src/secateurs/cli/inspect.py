"""`secateurs inspect FILE`: how sparse a checkpoint or a mask file is."""

from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateurs.cli.options import Json, show
from secateurs.errors import DataError

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor


def inspect(
    file: Annotated[
        Path,
        typer.Argument(
            help="A safetensors checkpoint or mask file.", show_default=False
        ),
    ],
    all: Annotated[
        bool, typer.Option("--all", help="Count biases, norms and other vectors too.")
    ] = False,
    json: Json = False,
) -> None:
    """Report the sparsity of every weight in a file. The network need not be known."""
    from secateurs.masks import sparsity

    report = sparsity(_counted(file, all=all))
    told = _told(file)
    if json:
        typer.echo(dumps(report.as_dict() | told, indent=2))
        return
    show(report)
    if told:
        show(_as_table(told))


def _told(file: Path) -> dict[str, Any]:
    """Certificate, rounding, notes and sizes of a sparse file; nothing of any other."""
    from secateurs.ship.files import is_sparse_file, read_sparse

    if not is_sparse_file(file):
        return {}
    held = read_sparse(file)
    told = {
        "certificate": held.certificate,
        "rounding": held.rounding,
        "notes": held.notes,
    }
    return {**told, "sizes": held.sizes.as_dict()}


def _as_table(told: dict[str, Any]) -> "Table":
    from rich.table import Table

    sizes = told["sizes"]
    table = Table(title="the file", show_header=False)
    table.add_row(
        "bytes", f"{sizes['bytes']:,}, {sizes['compression']:.3g} times smaller"
    )
    table.add_row("of it header", f"{sizes['header']:,}")
    for kind in ("certificate", "rounding", "notes"):
        plain = {k: v for k, v in told[kind].items() if not isinstance(v, list | dict)}
        text = "\n".join(f"{key}: {value}" for key, value in plain.items())
        table.add_row(kind, text or "none")
    return table


def _counted(file: Path, *, all: bool) -> "dict[str, Tensor]":
    """The masks of a mask file, or the weights of any other safetensors file."""
    from secateurs.masks import load_masks
    from secateurs.masks.files.header import FORMAT
    from secateurs.ship.files import is_sparse_file, load_sparse
    from secateurs.train import read_checkpoint

    if is_sparse_file(file):
        return _weights(load_sparse(file), file, all=all)
    held = read_checkpoint(file)
    if held.notes.get("format") == FORMAT:
        return load_masks(file)
    return _weights(held.tensors, file, all=all)


def _weights(
    tensors: "dict[str, Tensor]", file: Path, *, all: bool
) -> "dict[str, Tensor]":
    """The tensors that can be sparse."""
    counted = {
        name: t
        for name, t in tensors.items()
        if t.is_floating_point() and (all or t.ndim >= 2)
    }
    if not counted:
        kind = (
            "floating-point tensor"
            if all
            else "floating-point weight of two or more dimensions (try --all)"
        )
        raise DataError(f"{file} holds {len(tensors)} tensors, but no {kind}.")
    return counted
