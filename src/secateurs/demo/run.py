"""The demo itself: run the study, write its page, ship the best network."""

import os
from pathlib import Path
from typing import Any

from secateurs.demo.ending import SECTIONS
from secateurs.demo.outcome import Outcome, outcome
from secateurs.demo.plan import Settings, plan
from secateurs.demo.results import table, write
from secateurs.printing import Screen
from secateurs.report import write_page
from secateurs.study import run as run_study
from secateurs.study.watching.show import shown_here

STORE, PAGE = "demo.study", "report.html"


def run(
    out: Path,
    *,
    data: Any = "digits",
    settings: Settings | None = None,
    console: Screen | None = None,
    engine: str = "here",
) -> Outcome:
    """Run the demo and write the study, its page and the shipped network into the folder `out`.

    What was computed before is not computed again: a demo that was interrupted goes on.

    Args:
        out: The folder.
        data: A name of `secateurs data`, or a data set.
        settings: How long everything takes.
        console: Where results are printed.
        engine: "here" for one run after the other, "local" for two worker processes.
    """
    console, study = console or Screen(), plan(settings or Settings(), data)
    console.print(
        f"[dim]a study of {len(study.runs())} runs; it lies in {out}/{STORE}[/]"
    )
    workers = min(2, os.cpu_count() or 1)
    watcher = shown_here()
    try:
        store = run_study(
            study,
            out / STORE,
            engine=engine,
            workers=workers if engine == "local" else 1,
            watchers=(watcher,),
        )
    # The live display is closed first, or its last frame would lie over an error's
    # message.
    finally:
        watcher.close()
    with store:
        result = outcome(study, store)
    console.print(table(result), *(section(result) for section in SECTIONS), sep="\n")
    written = write(result, out)
    page = write_page(out / STORE, out / PAGE, figures=out / "figures")
    console.print(
        f"[dim]written to {out}/: {', '.join(path.name for path in written)}, figures/[/]\n"
        f"[bold]open {page}[/] to look at everything",
        highlight=False,
        soft_wrap=True,
    )
    return result
