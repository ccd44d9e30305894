"""`secateurs random-matrices 2`: norms of random matrices and moments of trained weights, the
tables of Qian & Klabjan (2021) computed anew beside the printed ones.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secateurs.cli.options import Download, Root, say
from secateurs.errors import ArgumentError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from torch import Tensor, nn

    from secateurs.study.reproduce.probabilistic.rows import Row


def probabilistic(
    table: Annotated[
        int,
        typer.Argument(help="1: moments of trained weights; 2: Lemma 3; 3: Lemma 4."),
    ],
    matrices: Annotated[
        int | None,
        typer.Option(help="Matrices per row of tables 2 and 3; as in print."),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Where all random numbers come from.")
    ] = 0,
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    file: Annotated[
        Path | None,
        typer.Option(help="Table 1 of this checkpoint, not of a new network."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help=(
                "What to train the network of table 1 on. Default: covertype, else fashion-mnist,"
                " else digits."
            )
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(help="How long to train it.")] = 20,
    root: Root = None,
    download: Download = False,
) -> None:
    """Norms of random matrices, or moments of trained weights, beside the tables in print.

    Tables 1 to 3 of Qian & Klabjan (2021), A Probabilistic Approach to Neural Network Pruning.
    """
    from secateurs.printing import Screen
    from secateurs.study.reproduce.probabilistic.tables import (
        latala_constants,
        norm_constants,
    )

    if table not in (1, 2, 3):
        raise ArgumentError(f"there is no table {table}: 1, 2 or 3.")
    if table == 1:
        result = (
            _moments(file)
            if file is not None
            else _trained(data, epochs, seed, root, download)
        )
    elif table == 2:
        result = _table(
            norm_constants(
                matrices=1_000 if matrices is None else matrices,
                seed=seed,
                workers=workers,
            )
        )
    else:
        result = _table(
            latala_constants(
                matrices=500 if matrices is None else matrices,
                seed=seed,
                workers=workers,
            )
        )
    console = Screen()
    # Without a terminal rich assumes 80 columns and cuts what the table compares.
    (console if console.is_terminal else Screen(width=180)).print(result)


def _table(rows: "Iterable[Row]") -> "RenderableType":
    from rich.table import Table

    shown = Table(
        title="measured ± Monte-Carlo error (printed; deviation in standard errors)"
    )
    rows = list(rows)
    for name in ("row", *(cell.name for cell in rows[0].cells)):
        shown.add_column(name)
    for row in rows:
        cells = (
            f"{c.measured:.3f} ± {c.error:.3f} ({c.printed:g}; {c.z:+.1f})"
            for c in row.cells
        )
        shown.add_row(row.label, *cells)
    return shown


def _moments(file: Path) -> "RenderableType":
    from secateurs.train import read_checkpoint

    return _shown(str(file), read_checkpoint(file).tensors)


def _trained(
    data: str | None, epochs: int, seed: int, root: Path | None, download: bool
) -> "RenderableType":
    from secateurs.data import load
    from secateurs.study.reproduce.probabilistic.moments import (
        data_at_hand,
        train_network,
    )

    # Told, since the table depends on it and the choice is made by what lies on this
    # machine.
    if data is None:
        found, reason = data_at_hand(root, download=download)
        say(f"data: {found.name} ({reason})")
    else:
        found = load(data, root=root, download=download)
    model = train_network(data=found, epochs=epochs, seed=seed)
    return _shown(f"5 hidden layers of 1,024, trained on {found.name}", model)


def _shown(
    title: str, weights: "nn.Module | Mapping[str, Tensor]"
) -> "RenderableType":
    from rich.markup import escape
    from rich.table import Table

    from secateurs.study.reproduce.probabilistic.moments import weight_moments

    shown = Table(title=escape(title))
    for name in (
        "layer",
        "mean",
        "variance",
        "printed mean",
        "printed variance",
        "histogram",
    ):
        shown.add_column(name)
    rows, found = weight_moments(weights)
    for row, layer in zip(rows, found.layers, strict=True):
        printed = (
            ("", "")
            if row.printed_mean is None
            else (f"{row.printed_mean:g}", f"{row.printed_variance:g}")
        )
        shown.add_row(
            escape(row.layer),
            f"{row.mean:.4f}",
            f"{row.variance:.4f}",
            *printed,
            _bars(layer.counts),
        )
    return shown


def _bars(counts: Iterable[int]) -> str:
    """A histogram in one line: the counts in threes, as block characters."""
    values = list(counts)
    sums = [sum(values[i : i + 3]) for i in range(0, len(values), 3)]
    top = max([*sums, 1])
    # Rounded up: a single weight far out is what one looks for, and must not vanish.
    return "".join(" ▁▂▃▄▅▆▇█"[-(-8 * value // top)] for value in sums)
