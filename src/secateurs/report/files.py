"""Every figure and table of a page as files of their own."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from secateurs.report.panel import Panel


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
    """Write a file whole or not at all: it takes its name when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, because a rename is atomic only within one file system. The
    # number of the process keeps two writers apart.
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    finally:
        # After an error nothing half written is left; after
        # the rename there is nothing to remove.
        part.unlink(missing_ok=True)
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
