"""`secateurs inspect FILE`: how sparse a checkpoint or a mask file is."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateurs.base.foreign import one_line
from secateurs.cli.commands import Json, say, show
from secateurs.errors import DataError

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor

    from secateurs.masks import SparsityReport


def inspect(
    file: Annotated[
        Path,
        typer.Argument(
            help="A safetensors checkpoint or mask file, or a folder of shards.",
            show_default=False,
        ),
    ],
    all: Annotated[
        bool,
        typer.Option("--all", help="Also count vectors, and tables of integers."),
    ] = False,
    json: Json = False,
) -> None:
    """Report the sparsity of every weight in a file. The network need not be known."""
    report = _report(file, all=all)
    facts = _statements_of(file)
    if json:
        # Imported here: `--help` reads this file and needs no JSON.
        from json import dumps

        say(dumps(report.as_dict() | facts, indent=2))
        return
    show(report)
    if facts:
        show(_as_table(facts))


def _statements_of(file: Path) -> dict[str, Any]:
    """Certificate, rounding, notes and sizes of a sparse file; nothing of any other."""
    from secateurs.files import is_sparse_file, read_sparse

    if not is_sparse_file(file):
        return {}
    held = read_sparse(file)
    facts = {
        "certificate": held.certificate,
        "rounding": held.rounding,
        "notes": held.notes,
    }
    return {**facts, "sizes": held.sizes.as_dict()}


def _as_table(facts: dict[str, Any]) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    sizes = facts["sizes"]
    table = Table(title="the file", show_header=False)
    table.add_row("bytes", f"{sizes['bytes']:,}, {sizes['compression']:.3g} times smaller")
    table.add_row("of it header", f"{sizes['header']:,}")
    for kind in ("certificate", "rounding", "notes"):
        plain = {k: v for k, v in facts[kind].items() if not isinstance(v, list | dict)}
        # Whoever wrote the file chose these texts: a line each, and no markup.
        text = "\n".join(one_line(f"{key}: {value}") for key, value in plain.items())
        table.add_row(kind, escape(text) or "none")
    return table


def _report(file: Path, *, all: bool) -> "SparsityReport":
    """The masks of a mask file, the weights of a sparse file, or the tensors of any other, which
    are read piece by piece, whatever their dtype.
    """
    from secateurs.files import is_sparse_file, load_sparse
    from secateurs.llm.on_disk import count_stored
    from secateurs.llm.shards import open_stored
    from secateurs.masks import load_masks, sparsity_report
    from secateurs.masks.files import FORMAT

    # Sparse files and mask files are safetensors as well: their metadata decide.
    if file.is_file() and is_sparse_file(file):
        return sparsity_report(_weights(load_sparse(file), file, all=all))
    stored = open_stored(file)
    if stored.notes.get("format") == FORMAT:
        return sparsity_report(load_masks(file))
    report = count_stored(stored, all=all)
    # A report of nothing would print a density of 1.
    if not report.tensors:
        raise DataError(_nothing(file, len(list(stored.entries())), all=all))
    return report


def _weights(tensors: "dict[str, Tensor]", file: Path, *, all: bool) -> "dict[str, Tensor]":
    """The tensors that can be sparse."""
    counted = {
        name: t
        for name, t in tensors.items()
        # Vectors are biases and norms, which nobody prunes: counting them would hide
        # the sparsity.
        if t.is_floating_point() and (all or t.ndim >= 2)
    }
    if not counted:
        raise DataError(_nothing(file, len(tensors), all=all))
    return counted


def _nothing(file: Path, count: int, *, all: bool) -> str:
    kind = (
        "floating-point tensor"
        if all
        else "floating-point weight of two or more dimensions (try --all)"
    )
    return f"{file} holds {count} tensors, but no {kind}."
