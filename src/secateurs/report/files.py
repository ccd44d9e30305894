"""Every figure and table of a page as files of their own."""

import re
from collections.abc import Sequence
from pathlib import Path

from secateurs.report.panel import Panel
from secateurs.writing import replacing


def write_files(
    folder: Path, parts: Sequence[tuple[str, Sequence[Panel]]]
) -> list[Path]:
    """Figures as SVG and CSV, tables as CSV, Markdown and LaTeX; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        write_text(folder / f"{_prefix(head)}{panel.name}.{ending}", text)
        for head, panels in parts
        for panel in panels
        for ending, text in _texts(panel).items()
    ]


def write_text(path: Path, text: str) -> Path:
    """Write a file whole or not at all."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


def _texts(panel: Panel) -> dict[str, str]:
    found = {"csv": panel.table.csv()}
    if panel.drawing is not None:
        return {"svg": panel.drawing.file(), **found}
    return {**found, "md": panel.table.markdown() + "\n", "tex": panel.table.latex()}


def _prefix(head: str) -> str:
    """A name for files from the name of a network and data set, whatever that holds."""
    # Names come from users: a slash or a leading dot must not choose another folder.
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', head).strip('-.')}-" if head else ""
