"""`secateurs demo`: the whole tool on a small network."""

from pathlib import Path
from typing import Annotated

import typer

from secateurs.cli.commands import Root, Seed, say


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")] = Path("demo"),
    data: Annotated[str, typer.Option("--data", help="A data set.")] = "digits",
    root: Root = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A few seconds instead of a minute; worse results."),
    ] = False,
    seed: Seed = 0,
) -> None:
    """Compare seven ways to make a LeNet sparse, open a page about it, ship the best one.

    However it is stopped, the next call goes on where it was.
    """
    from secateurs_lab import demo as bench
    from secateurs_lab.demo.run import QUICK
    from secateurs_lab.study import Data, Stopped

    seeds = (seed,) if quick else (seed, seed + 1)
    settings = bench.Settings(seeds=seeds, **(QUICK if quick else {}))
    source = Data(name=data, root=str(root) if root is not None else None)
    try:
        bench.run(out, data=source, settings=settings, engine="local")
    except Stopped as stopped:
        say(f"stopped; what is done is kept in {out}: call again.", err=True)
        # The exit code a shell gives to a process ended by a signal.
        raise typer.Exit(128 + stopped.signum) from None
