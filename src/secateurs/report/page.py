"""One HTML file: figures, tables and settings of a study. It works offline and asks nobody."""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from secateurs.report.look import document
from secateurs.report.overlap import Overlap, overlaps
from secateurs.report.panel import Panel
from secateurs.report.panels import panels
from secateurs.report.prose import methods_paragraph
from secateurs.report.published import Published, named_figures, shipped
from secateurs.report.section import section
from secateurs.report.series import counted
from secateurs.study.keeping.row import Row
from secateurs.study.store import Store


def write_page(
    store: str | Path,
    out: str | Path,
    *,
    published: Sequence[Published] = (),
    figures: str | Path | None = None,
) -> Path:
    """Write the page of a study's store; the file is whole or not there.

    Args:
        store: The folder of the store.
        out: The HTML file.
        published: Figures in print to be drawn dotted, besides those that the study names and
            those that ship with the package for the same network and data.
        figures: A folder for every figure and table as files of their own (SVG, CSV, Markdown,
            LaTeX).

    >>> import tempfile
    >>> from secateurs.study.store import Store
    >>> folder = Path(tempfile.mkdtemp())
    >>> Store.create(folder / "a.study").close()
    >>> write_page(folder / "a.study", folder / "page.html").name
    'page.html'
    """
    from secateurs.report.files import write_files, write_text

    out = Path(out)
    with Store.open(store) as opened:
        # Runs on the way of others are no line of a figure, but what they cost is counted.
        rows = opened.rows(hidden=True)
        laid = overlaps(opened, [row for row in rows if not row.hidden])
        study = opened.note("study") or {}
        own = named_figures(opened.note("published") or {})
    name = str(study.get("name") or Path(store).stem)
    printed = [*published, *own, *shipped()]
    write_text(out, page(rows, name=name, overlaps=laid, published=printed))
    if figures is not None:
        write_files(Path(figures), parts(rows, overlaps=laid, published=printed))
    return out


def page(
    rows: Sequence[Row],
    *,
    name: str,
    overlaps: Sequence[Overlap] = (),
    published: Sequence[Published] = (),
) -> str:
    """The page of these runs as HTML text. Whatever a row says is shown as text, never run."""
    body = "".join(
        section(*part) for part in parts(rows, overlaps=overlaps, published=published)
    )
    return document(name, f"{_lead(rows)}{body}{_methods(rows)}")


def parts(
    rows: Sequence[Row],
    *,
    overlaps: Sequence[Overlap] = (),
    published: Sequence[Published] = (),
) -> list[tuple[str, list[Panel]]]:
    """The panels of every network and data set, under its name; no name where there is only one."""
    places = list(dict.fromkeys((row.model, row.data) for row in rows))
    found = []
    for model, data in places:
        mine = [row for row in rows if (row.model, row.data) == (model, data)]
        laid = [each for each in overlaps if (each.model, each.data) == (model, data)]
        head = f"{model} on {data}" if len(places) > 1 else ""
        found.append((head, panels(mine, overlaps=laid, published=published)))
    return found


def _lead(rows: Sequence[Row]) -> str:
    """What was compared, in two lines; and what went wrong, so that nobody overlooks it."""
    ours = [row for row in rows if not row.hidden]
    if not any(map(counted, ours)):
        return "<p>Nothing to show yet: no run has ended.</p>"
    models = ", ".join(dict.fromkeys(row.model for row in ours))
    data = ", ".join(dict.fromkeys(row.data for row in ours))
    methods = dict.fromkeys(row.label for row in ours if row.kind != "dense")
    seeds = len({row.seed for row in ours})
    plural = "s" if seeds > 1 else ""
    text = f"{models} on {data}: {len(methods)} methods, {seeds} seed{plural}, {len(ours)} runs."
    open_ = sum(not row.ended for row in ours)
    wrong = sum(row.ended and row.state != "done" for row in ours)
    text += f" {open_} runs have not ended yet." if open_ else ""
    text += f" {wrong} runs did not end well: see the table of runs." if wrong else ""
    return f"<p>{escape(text)}</p>"


def _methods(rows: Sequence[Row]) -> str:
    """How it was done: a paragraph with every setting, and the rows' own words below."""
    said = "".join(
        f"<p><b>{escape(head)}</b>: {escape(text)}</p>"
        for head, text in methods_paragraph(rows)
    )
    entries = "".join(
        f"<details><summary>{escape(row.label)}</summary><pre>"
        f"{escape(json.dumps(dict(row.settings), indent=1, sort_keys=True))}\n"
        f"{escape(json.dumps(dict(row.provenance), indent=1, sort_keys=True))}</pre></details>"
        # One run stands for its method: the others
        # differ in seed, compression or strength.
        for row in {row.label: row for row in rows}.values()
    )
    return (
        f"<section><h2>Methods</h2>{said}<h3>As JSON</h3>{entries}</section>"
        if said
        else ""
    )
