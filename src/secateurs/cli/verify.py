"""`secateurs verify F G INSTANCE`: a competition's question about two networks, answered."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from secateurs.cli.commands import say, tell


def verify(
    first: Annotated[Path, typer.Argument(help="The network f, .onnx or .nnet.")],
    second: Annotated[Path, typer.Argument(help="The network g.")],
    instance: Annotated[Path, typer.Argument(help="The question, .vnnlib.")],
    epsilon: Annotated[
        float | None,
        typer.Option(help="The difference allowed, where the instance does not say."),
    ] = None,
    claim: Annotated[
        str | None,
        typer.Option(help="'top-1' asks whether both answer the same class, in place of ε."),
    ] = None,
    margin: Annotated[
        float,
        typer.Option(help="With --claim: only where f leads by more than this."),
    ] = 0.0,
    seconds: Annotated[float | None, typer.Option(help="How long it may take.")] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Keep the certificate in this file."),
    ] = None,
) -> None:
    """Print `unsat` (no input of the box takes both networks further apart), `sat` with such an
    input, or `unknown`.
    """
    from secateurs.compat.verify import verify as answer

    found = answer(
        first,
        second,
        instance,
        epsilon=epsilon,
        claim=claim,  # type: ignore[arg-type]  # any other word is refused there
        margin=margin,
        seconds=seconds,
        progress=tell if sys.stderr.isatty() else None,
    )
    for remark in found.remarks:
        tell(remark)
    if save is not None:
        found.certificate.save(save)
    say(str(found))
