"""Commands on what theory guarantees: plans, diagnoses, random matrices."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateurs.cli.commands import Arch, Classes, Download, InChannels, Root, Size, open_model, say
from secateurs.errors import ArgumentError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from torch import Tensor, nn

    from secateurs.papers.probabilistic import NormRow


def diagnose(
    file: Annotated[Path, typer.Argument(help="A safetensors checkpoint.", show_default=False)],
    json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON, with the histograms, instead of a table."),
    ] = False,
) -> None:
    """Moments and distribution of every weight in a file, against what the theorems assume."""
    from json import dumps

    from secateurs.diagnosis import diagnose as diagnosed
    from secateurs.train import read_checkpoint

    # The tensors alone: no network has to be known to look at its weights.
    found = diagnosed(read_checkpoint(file).tensors)
    say(dumps(found.rows()) if json else str(found))


# `secateurs plan --widths 784,1024,1024,10 --alpha 0.1`, `secateurs plan FILE`: what theory
# guarantees.


def plan(
    file: Annotated[
        Path | None,
        typer.Argument(help="A safetensors checkpoint of a chain of layers."),
    ] = None,
    widths: Annotated[
        str | None, typer.Option(help="Widths of a network, instead of a file.")
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="Each inner layer loses D^(1-alpha) of its D weights."),
    ] = None,
    sparsity: Annotated[
        float | None,
        typer.Option(help="Share of the inner weights removed, instead of alpha."),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="The largest error allowed.")] = None,
    delta: Annotated[
        float, typer.Option(help="The probability of failure that is acceptable.")
    ] = 0.05,
    scheme: Annotated[
        str,
        typer.Option(
            help=(
                "magnitude or random; filters (of convolutions: --widths with --kernel and --size)."
            )
        ),
    ] = "magnitude",
    law: Annotated[
        str | None,
        typer.Option(
            help="uniform or bounded entries; by default uniform for widths, bounded for a file."
        ),
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            help=(
                "K: weights lie within ±K/sqrt(max of the two widths); by default 1, or read off"
                " the file."
            )
        ),
    ] = None,
    lipschitz: Annotated[
        float | None,
        typer.Option(
            help=(
                "Product of the activations' Lipschitz constants; by default 1, or read off the"
                " file."
            )
        ),
    ] = None,
    kernel: Annotated[
        int | None,
        typer.Option(help="With --widths: the side of the filters of convolutions."),
    ] = None,
    size: Size = None,
    arch: Arch = None,
    in_channels: InChannels = None,
    classes: Classes = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of sentences.")] = False,
) -> None:
    """Say in plain words what theory guarantees about pruning a network of these widths, or the one
    in a file.
    """
    from secateurs.theory import plan as asked

    found = asked(
        _network(
            file,
            widths,
            arch=arch,
            in_channels=in_channels,
            classes=classes,
            # With --kernel the size is that of the planned network's images, not of a
            # file's.
            size=size if kernel is None else None,
        ),
        alpha=alpha,
        sparsity=sparsity,
        epsilon=epsilon,
        delta=delta,
        scheme=scheme,  # type: ignore[arg-type]
        law=law,  # type: ignore[arg-type]
        scale=scale,
        lipschitz=lipschitz,
        kernel=kernel,
        input_size=size,
    )
    say(found.to_json() if json else str(found))


def _network(file: Path | None, widths: str | None, **shape: Any) -> "nn.Module | list[int]":
    if file is not None and widths is None:
        return open_model(file, **shape)[0]
    # Both would leave open which of the two is planned for.
    if widths is None or file is not None:
        raise ArgumentError("give either a FILE or --widths such as 784,1024,1024,10, not both.")
    # Options of a file are refused beside --widths, where they would have no effect.
    given = [f"--{name.replace('_', '-')}" for name, value in shape.items() if value is not None]
    if given:
        raise ArgumentError(
            f"{', '.join(given)}: with a FILE only; --size also with --widths and --kernel."
        )
    return _numbers(widths)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentError(
            f"--widths {text!r} is not a list of whole numbers such as 784,1024,1024,10."
        ) from None


# `secateurs random-matrices 2`: norms of random matrices and moments of trained weights, the
# tables of Qian & Klabjan (2021) computed anew beside the printed ones.


def probabilistic(
    table: Annotated[
        int,
        typer.Argument(help="1: moments of trained weights; 2: Lemma 3; 3: Lemma 4."),
    ],
    matrices: Annotated[
        int | None,
        typer.Option(help="Matrices per row of tables 2 and 3; by default as in the paper."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Where all random numbers come from.")] = 0,
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
    """Norms of random matrices, or moments of trained weights, beside the tables of the paper.

    Tables 1 to 3 of Qian & Klabjan (2021), A Probabilistic Approach to Neural Network Pruning.
    """
    from secateurs.papers.probabilistic import latala_constants, norm_constants
    from secateurs.printing import Screen

    if table not in (1, 2, 3):
        raise ArgumentError(f"there is no table {table}; choose 1, 2 or 3.")
    if table == 1:
        result = (
            _moments(file)
            if file is not None
            else _table_after_training(data, epochs, seed, root, download)
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


def _table(rows: "Iterable[NormRow]") -> "RenderableType":
    from rich.table import Table

    shown = Table(title="measured ± Monte-Carlo error (printed; deviation in standard errors)")
    rows = list(rows)
    for name in ("row", *(cell.name for cell in rows[0].cells)):
        shown.add_column(name)
    for row in rows:
        cells = (f"{c.measured:.3f} ± {c.error:.3f} ({c.printed:g}; {c.z:+.1f})" for c in row.cells)
        shown.add_row(row.label, *cells)
    return shown


def _moments(file: Path) -> "RenderableType":
    from secateurs.train import read_checkpoint

    return _table_of_weights(str(file), read_checkpoint(file).tensors)


def _table_after_training(
    data: str | None, epochs: int, seed: int, root: Path | None, download: bool
) -> "RenderableType":
    from secateurs.data import load
    from secateurs.papers.probabilistic import data_at_hand, train_network

    # Printed, because the table depends on it, and which one is used depends on what is on this
    # machine.
    if data is None:
        found, reason = data_at_hand(root, download=download)
        say(f"data: {found.name} ({reason})")
    else:
        found = load(data, root=root, download=download)
    model = train_network(data=found, epochs=epochs, seed=seed)
    return _table_of_weights(f"5 hidden layers of 1,024, trained on {found.name}", model)


def _table_of_weights(title: str, weights: "nn.Module | Mapping[str, Tensor]") -> "RenderableType":
    from rich.markup import escape
    from rich.table import Table

    from secateurs.papers.probabilistic import weight_moments

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
