"""`secateurs probabilistic 2`: the tables of Qian & Klabjan (2021), computed anew beside the printed ones."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secateurs.errors import ArgumentError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from secateurs.study.reproduce.probabilistic import Row


def probabilistic(
    table: Annotated[int, typer.Argument(help="1: moments of trained weights; 2: Lemma 3; 3: Lemma 4.")],
    matrices: Annotated[int | None, typer.Option(help="Matrices per row of tables 2 and 3; as in print.")] = None,
    seed: Annotated[int, typer.Option(help="Where all random numbers come from.")] = 0,
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    file: Annotated[Path | None, typer.Option(help="Table 1 of this checkpoint, not of a new network.")] = None,
    data: Annotated[str, typer.Option(help="What to train the network of table 1 on.")] = "digits",
    epochs: Annotated[int, typer.Option(help="How long to train it.")] = 20,
) -> None:
    """Compute a table of the probabilistic pruning paper and print it beside the printed one."""
    from rich.console import Console

    from secateurs.study.reproduce.probabilistic import latala_constants, norm_constants

    if table not in (1, 2, 3):
        raise ArgumentError(f"there is no table {table}: 1, 2 or 3.")
    if table == 1:
        result = _moments(file, data, epochs, seed)
    elif table == 2:
        result = _table(norm_constants(matrices=1_000 if matrices is None else matrices, seed=seed, workers=workers))
    else:
        result = _table(latala_constants(matrices=500 if matrices is None else matrices, seed=seed, workers=workers))
    console = Console()
    (console if console.is_terminal else Console(width=180)).print(result)


def _table(rows: "Iterable[Row]") -> "RenderableType":
    from rich.table import Table

    shown = Table(title="measured ± Monte-Carlo error (printed; deviation in standard errors)")
    rows = list(rows)
    for name in ("row", *(cell.name for cell in rows[0].cells)):
        shown.add_column(name)
    for row in rows:
        cells = (f"{c.measured:.3f} ± {c.error:.3f} ({c.printed:g}; {c.z:+.1f})" for c in row.cells)
        shown.add_row(row.label, *cells)
    return shown


def _moments(file: Path | None, data: str, epochs: int, seed: int) -> "RenderableType":
    from rich.table import Table

    from secateurs.study.reproduce.probabilistic import train_network, weight_moments
    from secateurs.train import read_checkpoint

    weights = train_network(data=data, epochs=epochs, seed=seed) if file is None else read_checkpoint(file).tensors
    shown = Table(title=str(file or f"5 hidden layers of 1,024, trained on {data}"))
    for name in ("layer", "mean", "variance", "printed mean", "printed variance", "histogram"):
        shown.add_column(name)
    rows, found = weight_moments(weights)
    for row, layer in zip(rows, found.layers, strict=True):
        printed = ("", "") if row.printed_mean is None else (f"{row.printed_mean:g}", f"{row.printed_variance:g}")
        shown.add_row(row.layer, f"{row.mean:.4f}", f"{row.variance:.4f}", *printed, _bars(layer.counts))
    return shown


def _bars(counts: Iterable[int]) -> str:
    """A histogram in one line: the counts in threes, as block characters."""
    values = list(counts)
    sums = [sum(values[i : i + 3]) for i in range(0, len(values), 3)]
    top = max([*sums, 1])
    return "".join(" ▁▂▃▄▅▆▇█"[-(-8 * value // top)] for value in sums)
