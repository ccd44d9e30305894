"""The commands by name: where their functions are, and the words that `--help` shows; with what
several commands share: options, checking outputs, printing.

A new command is a file with a function and an entry here. Other packages add theirs as an entry
point of the group `secateurs.commands` that names such a table.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secateurs.base.foreign import visible
from secateurs.errors import ArgumentError

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True)
class Command:
    """Where the function of a command lies, and the first sentences of its help.

    `secateurs --help` needs these words alone. Importing all functions for them takes a tenth of
    its time.
    """

    module: str
    name: str
    summary: str

    @property
    def function(self) -> Callable[..., None] | typer.Typer:
        """The function itself, or a group of commands."""
        found: Callable[..., None] | typer.Typer = getattr(import_module(self.module), self.name)
        return found


# The words are those of the functions' docstrings; a test compares them.
COMMANDS = {
    "prune": Command(
        "secateurs.cli.prune",
        "prune",
        "Prune a safetensors file, or a folder of them, without its network, and report.",
    ),
    "inspect": Command(
        "secateurs.cli.inspect",
        "inspect",
        "Report the sparsity of every weight in a file. The network need not be known.",
    ),
    "recheck": Command(
        "secateurs.cli.verify",
        "recheck",
        "Prove a kept certificate again, from the two networks alone.",
    ),
    "verify": Command(
        "secateurs.cli.verify",
        "verify",
        "Print `unsat` (no input of the box takes both networks further apart), `sat` with such an "
        "input, or `unknown`.",
    ),
    "scores": Command(
        "secateurs.cli.commands",
        "scores",
        "List the scores: how important is a weight.",
    ),
    "pack": Command(
        "secateurs.cli.ship",
        "pack",
        "Write a checkpoint without its zeros, exact to the bit. The network need not be known.",
    ),
    "unpack": Command(
        "secateurs.cli.ship",
        "unpack",
        "Write the dense safetensors checkpoint of a sparse file; every bit is what it was.",
    ),
}


@cache
def all_commands() -> dict[str, Command]:
    """Our commands, and those of installed packages, such as the laboratory's."""
    found = dict(COMMANDS)
    for point in entry_points(group="secateurs.commands"):
        found |= point.load()
    return found


# Options and checks that several commands share.

ModelFile = Annotated[
    Path,
    typer.Argument(help="A safetensors checkpoint.", metavar="MODEL", show_default=False),
]
OutFile = Annotated[
    Path, typer.Option("--out", "-o", help="The checkpoint to write.", show_default=False)
]
Root = Annotated[Path | None, typer.Option(help="The folder of the data set.")]
Seed = Annotated[int, typer.Option(help="The seed of all random numbers.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def check_outputs(outputs: Iterable[Path | None], *, inputs: Iterable[Path | None]) -> None:
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
            raise ArgumentError(f"{path} is named for two outputs; give each its own file.")
        if path.is_dir():
            raise ArgumentError(f"{path} is a folder; name a file to write.")
        seen.add(path.resolve())


def show(result: "RenderableType") -> None:
    """Print a table: as wide as the terminal, and wide enough for whole names where there is
    none.
    """
    from secateurs.base.printing import Screen

    # Without a terminal rich assumes 80 columns and cuts names, which a reader of a log needs.
    screen = Screen()
    (screen if screen.is_terminal else Screen(width=140)).print(result)


def say(text: object, *, err: bool = False) -> None:
    """Print text; names from foreign files cannot control the terminal."""
    typer.echo(visible(str(text)), err=err)


def tell(text: str) -> None:
    """Print progress on standard error."""
    say(text, err=True)


# `secateurs scores`: what exists, one line each.


def scores() -> None:
    """List the scores: how important is a weight."""
    from secateurs.scores import SCORES

    print_lines((name, SCORES[name].description) for name in SCORES.names())


def print_lines(rows: Iterable[tuple[str, str]]) -> None:
    """Names and what they are, in two columns."""
    # A list first: the width of the column is that of the longest name.
    lines = list(rows)
    width = max(len(name) for name, _ in lines)
    for name, summary in lines:
        say(f"{name:{width}}  {summary}")
