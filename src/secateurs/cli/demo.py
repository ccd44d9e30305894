"""`secateurs demo`: the whole tool on a small network."""

from pathlib import Path
from typing import Annotated

import typer

from secateurs.cli.options import Root, Seed


def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The folder to write.")
    ] = Path("demo"),
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="A data set; by default Fashion-MNIST if it is here, else digits.",
        ),
    ] = None,
    root: Root = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="A few seconds instead of a minute; worse results."
        ),
    ] = False,
    seed: Seed = 0,
) -> None:
    """Train a LeNet, prune it by several methods, fine-tune, and compare."""
    from secateurs import demo as bench
    from secateurs.data import load

    settings = bench.Settings(seed=seed)
    if quick:
        settings = bench.Settings(
            seed=seed, dense="100it", tuning="30it", sparsities=(0.9,), rounds=5
        )
    bench.run(out, data=load(data, root=root) if data else None, settings=settings)
