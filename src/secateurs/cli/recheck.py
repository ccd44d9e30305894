"""`secateurs recheck CERTIFICATE DENSE SPARSE`: a kept certificate, proved again."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from secateurs.cli.asked import Which
from secateurs.cli.options import Arch, Classes, InChannels, Size, say, tell


def recheck(
    certificate: Annotated[
        Path,
        typer.Argument(
            help="What `certify --save` (or --json) wrote.", show_default=False
        ),
    ],
    dense: Annotated[
        Path,
        typer.Argument(
            help="The checkpoint of the dense network.", show_default=False
        ),
    ],
    sparse: Annotated[
        Path,
        typer.Argument(help="The checkpoint of the changed one.", show_default=False),
    ],
    arch: Arch = None,
    in_channels: InChannels = None,
    classes: Classes = None,
    size: Size = None,
) -> None:
    """Prove a kept certificate again, from the two networks alone.

    Exits with 1 where it does not hold: other weights, another graph, or a bound that was too
    small.
    """
    from secateurs.paths import recheck as prove_again

    which = Which(arch, in_channels, classes, size)
    models = [which.opened(path)[0].eval() for path in (dense, sparse)]
    heard = tell if sys.stderr.isatty() else None
    result = prove_again(certificate, models[0], models[1], progress=heard)
    say(str(result))
    # An exit code, so that a script can stop where a certificate no longer holds.
    if not result.holds:
        raise typer.Exit(1)
