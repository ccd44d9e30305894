"""Figures of an experiment as files, and as one page that works offline."""

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path

from secateurs.report.files import write_text
from secateurs.report.look import document
from secateurs.report.panel import Panel
from secateurs.report.section import section
from secateurs.report.table import Table
from secateurs.study.reproduce.experiment import Experiment, Row
from secateurs.study.reproduce.page import COLUMNS, cells


def write_figures(folder: Path, name: str, panels: Sequence[Panel]) -> list[Path]:
    """Every figure as SVG, named after the experiment; returns the files."""
    return [
        write_text(folder / f"{name}-{panel.name}.svg", panel.drawing.file())
        for panel in panels
        if panel.drawing is not None
    ]


def links(page: Path, files: Sequence[Path], panels: Sequence[Panel]) -> str:
    """The figures as Markdown, for a page that lies at `page`."""
    # Nobody asked for files: the page has its numbers alone.
    if not files:
        return ""
    lines = ["", "## Figures", ""]
    for path, panel in zip(files, panels, strict=True):
        # Forward slashes on every system: the page is read on others, too.
        place = _relative(path, page.parent).as_posix()
        _, x, y, *_ = panel.table.columns
        lines += [f"![{panel.head}: {y} against {x}]({place})", ""]
    return "\n".join(lines)


def write_html(
    out: Path,
    experiment: Experiment,
    rows: Sequence[Row],
    panels: Sequence[Panel],
    *,
    scale: str,
) -> Path:
    """One self-contained page: figures with hover and legend, then every number beside print."""
    name = experiment.name
    lead = f"secateurs reproduce {name} --scale {scale} --out {name}.csv"
    said = [f"<p><code>{lead}</code></p>"]
    said += [f"<p>{escape(experiment.settings.get(scale, ''))}</p>"]  # type: ignore[call-overload]
    numbers = Table(
        columns=COLUMNS,
        cells=tuple(cells(each) for each in experiment.beside(rows)),
    )
    beside = Panel(name="beside-print", head="Beside print", table=numbers)
    body = "".join(said) + section("", [*panels, beside])
    return write_text(out, document(f"{experiment.paper}: {experiment.what}", body))


def _relative(path: Path, folder: Path) -> Path:
    # Not `Path.relative_to`, which refuses a folder beside the page's own.
    return Path(os.path.relpath(path.resolve(), folder.resolve()))
