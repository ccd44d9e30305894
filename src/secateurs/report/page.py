"""One HTML file: figures, tables and settings of a study. It works offline and asks nobody."""

import base64
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from secateurs.report import tables
from secateurs.report.figures import chart, legend
from secateurs.report.look import SCRIPT, STYLE
from secateurs.report.series import Line, dynamics, frontier
from secateurs.report.tables import Table
from secateurs.study.keeping.row import Point, Row
from secateurs.study.store import Store

QUANTITIES: tuple[tuple[str, Callable[[Point], float | None]], ...] = (
    ("training loss", lambda point: point.loss),
    ("test accuracy", lambda point: point.test_accuracy),
    ("share of zeros", lambda point: point.sparsity),
    ("strength λ", lambda point: point.strength),
    ("misalignment of the factors", lambda point: point.misalignment),
)
"""What a training shows over its epochs."""


def write_page(store: str | Path, out: str | Path) -> Path:
    """Write the page of a study's store; the file is whole or not there.

    >>> import tempfile
    >>> from secateurs.study.store import Store
    >>> folder = Path(tempfile.mkdtemp())
    >>> Store.create(folder / "a.study").close()
    >>> write_page(folder / "a.study", folder / "page.html").name
    'page.html'
    """
    out = Path(out)
    with Store.open(store) as opened:
        text = page(opened.rows(), name=Path(store).name)
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, out)
    return out


def page(rows: Sequence[Row], *, name: str) -> str:
    """The page of these runs as HTML text. Whatever a row says is shown as text, never run."""
    lines, first = frontier(rows), _first_seeds(rows)
    sections = [_frontier(rows, lines), *_dynamics(first)]
    sections += [
        _section("Remaining weights", "Percent of each layer.", tables.layers(first)),
        _section(
            "Certificates",
            "How far sparse and dense differ.",
            tables.certificates(rows),
        ),
        _section("Runs", _ends(rows), tables.runs(rows)),
        _methods(first),
    ]
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(name)}</title><style>{STYLE}</style></head><body>"
        f"<main><h1>{escape(name)}</h1>{''.join(sections)}</main>"
        f'<div id="tip" role="status" hidden></div><script>{SCRIPT}</script></body></html>\n'
    )


def _frontier(rows: Sequence[Row], lines: Sequence[Line]) -> str:
    figure = chart(
        lines, x="compression (total / kept)", y="test accuracy %", log_x=True
    )
    dense = tables.dense_accuracy(rows)
    text = "Medians over seeds; whiskers from the least to the most."
    parts = [
        f"<h2>Accuracy against compression</h2><p>{text}</p>",
        _figure(lines, figure),
    ]
    if dense is not None:
        within = tables.largest(lines, dense)
        parts.append(
            f"<h3>Largest compression</h3><p>The dense network: {dense:.2f} %.</p>"
        )
        parts += [within.html(), _links("largest", within)]
    return f"<section>{''.join(parts)}</section>"


def _dynamics(rows: Sequence[Row]) -> list[str]:
    found = []
    for label, of in QUANTITIES:
        lines = dynamics(rows, of)
        if lines:
            figure = chart(lines, x="epoch", y=label)
            body = f"<h2>{escape(label.capitalize())}</h2>{_figure(lines, figure)}"
            found.append(f"<section>{body}</section>")
    return found


def _section(head: str, text: str, table: Table) -> str:
    if not table.cells:
        return ""
    body = f"<h2>{escape(head)}</h2><p>{escape(text)}</p>{table.html()}"
    return f"<section>{body}{_links(head.lower(), table)}</section>"


def _methods(rows: Sequence[Row]) -> str:
    """Every setting of every method, as it was run."""
    entries = [
        f"<details><summary>{escape(row.label)}</summary>"
        f"<pre>{escape(json.dumps(dict(row.settings), indent=1, sort_keys=True))}</pre>"
        f"<pre>{escape(json.dumps(dict(row.provenance), indent=1, sort_keys=True))}</pre></details>"
        for row in {row.label: row for row in rows}.values()
    ]
    return f"<section><h2>Settings</h2>{''.join(entries)}</section>"


def _figure(lines: Sequence[Line], figure: str) -> str:
    cells = [
        (line.name, f"{d.x:.8g}", f"{d.y:.8g}", f"{d.low:.8g}", f"{d.high:.8g}")
        for line in lines
        for d in line.dots
    ]
    table = Table(columns=("line", "x", "median", "least", "most"), cells=tuple(cells))
    svg = _link("figure.svg", "image/svg+xml", figure, "SVG")
    csv = _link("figure.csv", "text/csv", table.csv(), "CSV")
    return (
        f"<figure>{legend(lines)}{figure}<figcaption>{svg} {csv}</figcaption></figure>"
    )


def _links(name: str, table: Table) -> str:
    csv = _link(f"{name}.csv", "text/csv", table.csv(), "CSV")
    return f"<p>{csv} {_link(f'{name}.md', 'text/markdown', table.markdown(), 'Markdown')}</p>"


def _link(name: str, kind: str, text: str, label: str) -> str:
    data = base64.b64encode(text.encode()).decode()
    return f'<a download="{escape(name)}" href="data:{kind};base64,{data}">{label}</a>'


def _first_seeds(rows: Sequence[Row]) -> list[Row]:
    """One finished run of each setting: what is shown run by run would be too much for all."""
    found: dict[tuple[object, ...], Row] = {}
    for row in rows:
        if row.state in ("done", "collapsed"):
            found.setdefault((row.label, row.asked, row.strength), row)
    return list(found.values())


def _ends(rows: Sequence[Row]) -> str:
    states = [row.state for row in rows]
    counted = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    return f"{len(rows)} runs: {', '.join(counted)}." if counted else "No runs yet."


def _policy() -> str:
    """No request leaves the page, and no script runs but the one it was written with."""
    script, style = (_hash(text) for text in (SCRIPT, STYLE))
    return f"default-src 'none'; script-src '{script}'; style-src '{style}'; base-uri 'none'"


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
