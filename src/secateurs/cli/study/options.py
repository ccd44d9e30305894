"""Options of the commands on studies, and what a FILE stands for."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secateurs.errors import ArgumentError

if TYPE_CHECKING:
    from secateurs.study import Store, Study

File = Annotated[
    Path,
    typer.Argument(
        help="The study (TOML), or the folder of its store.",
        metavar="FILE",
        show_default=False,
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--store", help="The folder of the store; by default FILE's name with .study."
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        help="local (worker processes), ray (a cluster), ranks (torchrun) or here."
    ),
]
Workers = Annotated[
    int,
    typer.Option(
        help="Worker processes; with ray, runs at a time (0: all there is room for)."
    ),
]
Threads = Annotated[int, typer.Option(help="Threads of each worker.")]
Device = Annotated[
    str, typer.Option(help="Where to train; by default what the machine has.")
]
Address = Annotated[
    str, typer.Option(help="Of a Ray cluster; by default one on this machine.")
]
SaveEvery = Annotated[
    float, typer.Option(help="Seconds between two checkpoints of a run.")
]
Sinks = Annotated[
    list[str] | None,
    typer.Option("--sink", help="Also write to: tensorboard, wandb (offline)."),
]


def folder_of(file: Path, store: Path | None) -> Path:
    """The store of a file, or the store itself."""
    if store is not None:
        return store
    # A folder is a store already; beside a file the store takes its name.
    return file if file.is_dir() else file.with_suffix(".study")


def study_of(file: Path, opened: "Store") -> "tuple[Study, str]":
    """The study of a file, or the one its store remembers."""
    from secateurs.study.settings.file import parse, read

    # The file first: it may have been edited since the store was made.
    if file.is_file():
        return read(file), file.read_text(encoding="utf-8")
    text = (opened.note("study") or {}).get("text")
    # A study made in Python has no text to read it from again.
    if not isinstance(text, str):
        raise ArgumentError(
            f"{file} comes from Python: call secateurs.study.run(...) again to go on."
        )
    return parse(text, file=str(file / "study.toml")), text
