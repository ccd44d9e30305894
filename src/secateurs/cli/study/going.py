"""A study run to its end, or until it is stopped."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from secateurs.cli.options import say

if TYPE_CHECKING:
    from secateurs.study import Study


def go_on(
    study: "Study",
    folder: Path,
    options: dict[str, object],
    sinks: list[str],
    text: str,
) -> None:
    """Run what is not done yet, show it, and say what came of it."""
    from secateurs.study import How, Stopped, Store
    from secateurs.study import run as go
    from secateurs.study.watching.show import shown_here
    from secateurs.study.watching.sinks import sink_of

    # All options are checked here, before a store is made.
    how = How(**options)  # type: ignore[arg-type]
    shown = shown_here()
    watchers = (shown, *(sink_of(name, folder) for name in sinks))
    if not int(os.environ.get("RANK", 0)):  # under torchrun one process writes
        with Store.create(folder) as opened:
            opened.remember("study", {"name": study.name, "text": text})
    try:
        with go(study, folder, how=how, watchers=watchers) as done:
            counts = done.counts()
    except Stopped as stopped:
        say(f"{stopped}", err=True)
        raise typer.Exit(128 + stopped.signum) from None
    finally:
        # A live table that is left open would swallow whatever is said next.
        shown.close()
    told = ", ".join(f"{count} {state}" for state, count in counts.items())
    say(f"{folder}: {told}")
    say(f"`secateurs study report {folder}` makes its page.", err=True)
