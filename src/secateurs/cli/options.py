"""Options and checks that several commands share."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secateurs.errors import ArgumentError
from secateurs.foreign import visible

if TYPE_CHECKING:
    from rich.console import RenderableType

ModelFile = Annotated[
    Path,
    typer.Argument(
        help="A safetensors checkpoint.", metavar="MODEL", show_default=False
    ),
]
Arch = Annotated[
    str | None,
    typer.Option(
        "--arch",
        help="The network; see `secateurs models`. By default what the file itself says.",
    ),
]
Classes = Annotated[
    int | None, typer.Option(help="Number of outputs, where it is not the usual one.")
]
InChannels = Annotated[int | None, typer.Option(help="Channels of the images.")]
Size = Annotated[int | None, typer.Option(help="Side of the images in pixels.")]
DataName = Annotated[
    str | None, typer.Option("--data", help="A data set; see `secateurs data`.")
]
Root = Annotated[Path | None, typer.Option(help="The folder of the data set.")]
Download = Annotated[
    bool, typer.Option("--download", help="Fetch the data set if it is not here.")
]
Seed = Annotated[int, typer.Option(help="Where all random numbers come from.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def check_outputs(
    outputs: Iterable[Path | None], *, inputs: Iterable[Path | None]
) -> None:
    """Refuse, before anything is computed, to write over an input, twice to one file, or onto a
    folder.
    """
    read = {path.resolve() for path in inputs if path is not None}
    seen: set[Path] = set()
    # Resolved, so that ./a and a, or a link to it, count as one file.
    for path in (output for output in outputs if output is not None):
        if path.resolve() in read:
            raise ArgumentError(
                f"{path} is an input and would be overwritten; write to another file."
            )
        if path.resolve() in seen:
            raise ArgumentError(
                f"{path} is named for two outputs; give each its own file."
            )
        if path.is_dir():
            raise ArgumentError(f"{path} is a folder; name a file to write.")
        seen.add(path.resolve())


def show(result: "RenderableType") -> None:
    """Print a table: as wide as the terminal, and wide enough for whole names where there is
    none.
    """
    from secateurs.printing import Screen

    # Without a terminal rich assumes 80 columns and cuts names, which a reader of a log needs.
    screen = Screen()
    (screen if screen.is_terminal else Screen(width=140)).print(result)


def say(text: object, *, err: bool = False) -> None:
    """Write text for whoever reads it; names in files of others cannot steer the terminal."""
    typer.echo(visible(str(text)), err=err)


def tell(text: str) -> None:
    """Progress, for whoever waits at a terminal."""
    say(text, err=True)
