"""Panels as HTML: those under one head side by side, each with its files as links."""

import base64
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from secateurs.report.figures.drawing import legend
from secateurs.report.panel import Panel


def section(head: str, found: Sequence[Panel]) -> str:
    """Panels under one head stand side by side."""
    body = f"<h2>{escape(head)}</h2>" if head else ""
    # No level of heads is left out: readers of screens use them to move about.
    level = 3 if head else 2
    # groupby joins neighbours only, so the panels
    # keep the order in which they were made.
    for name, group in groupby(found, key=lambda panel: panel.head):
        several = list(group)
        text = f"<p>{escape(several[0].text)}</p>" if several[0].text else ""
        wide = " one" if len(several) == 1 else ""
        inner = "".join(map(_panel, several))
        body += (
            f"<section><h{level}>{escape(name)}</h{level}>{text}"
            f'<div class="panels{wide}">{inner}</div></section>'
        )
    return body


def _panel(panel: Panel) -> str:
    links = f"<figcaption>{' '.join(_links(panel))}</figcaption>"
    if panel.drawing is not None:
        keys = legend(panel.drawing.keys)
        inner = f'{keys}<div class="scroll">{panel.drawing.svg()}</div>'
    else:
        inner = panel.table.html()
    if panel.folded:
        count = len(panel.table.cells)
        inner = f"<details><summary>Show all {count:,}</summary>{inner}</details>"
    return f"<figure>{inner}{links}</figure>"


def _links(panel: Panel) -> Iterator[str]:
    if panel.drawing is not None:
        yield _link(f"{panel.name}.svg", "image/svg+xml", panel.drawing.file(), "SVG")
    yield _link(f"{panel.name}.csv", "text/csv", panel.table.csv(), "CSV")
    # A folded table is a long one: two more copies of it would make the page heavy.
    if panel.drawing is None and not panel.folded:
        markdown, latex = panel.table.markdown(), panel.table.latex()
        yield _link(f"{panel.name}.md", "text/markdown", markdown, "Markdown")
        yield _link(f"{panel.name}.tex", "application/x-tex", latex, "LaTeX")


def _link(name: str, kind: str, text: str, label: str) -> str:
    # A data: link also works in a page saved to disk, and base64 needs no escaping.
    data = base64.b64encode(text.encode()).decode()
    return (
        f'<a download="{escape(name)}" href="data:{kind};base64,{data}">{label}</a>'
    )
