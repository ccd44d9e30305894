"""`secateurs diagnose FILE`: which theorem's assumptions the weights of a checkpoint meet."""

from pathlib import Path
from typing import Annotated

import typer

from secateurs.cli.options import say


def diagnose(
    file: Annotated[
        Path, typer.Argument(help="A safetensors checkpoint.", show_default=False)
    ],
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print JSON, with the histograms, instead of a table."
        ),
    ] = False,
) -> None:
    """Moments and distribution of every weight in a file, against what the theorems assume."""
    from json import dumps

    from secateurs.diagnosis import diagnose as diagnosed
    from secateurs.train import read_checkpoint

    # The tensors alone: no network has to be known to look at its weights.
    found = diagnosed(read_checkpoint(file).tensors)
    say(dumps(found.rows()) if json else str(found))
