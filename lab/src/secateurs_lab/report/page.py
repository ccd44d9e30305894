"""One HTML file: figures, tables and settings of a study. It works offline and makes no request."""

import base64
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

from secateurs.base.safefile import replacing
from secateurs_lab.report import tables
from secateurs_lab.report.figures import DARK, INK, LIGHT, PAPER, chart, legend
from secateurs_lab.report.published import Published, named_figures, shipped_figures
from secateurs_lab.report.series import (
    MOST,
    at,
    colours,
    compressions,
    dynamics,
    first_seeds,
    histogram,
    is_result,
    spread,
)
from secateurs_lab.report.summary import CANDIDATE, chosen_candidates, summary
from secateurs_lab.report.tables import (
    Overlap,
    Panel,
    cost,
    frontier_panels,
    layer_panels,
    overlap_panel,
    overlaps,
)
from secateurs_lab.study.database import Point, Row
from secateurs_lab.study.export import flat
from secateurs_lab.study.store import Store

# Every figure and table of a page as files of their own.


def write_files(folder: Path, parts: Sequence[tuple[str, Sequence[Panel]]]) -> list[Path]:
    """Figures as SVG and CSV, tables as CSV, Markdown and LaTeX; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        write_text(folder / f"{_prefix(head)}{panel.name}.{ending}", text)
        for head, panels in parts
        for panel in panels
        for ending, text in _texts(panel).items()
    ]


def write_text(path: Path, text: str) -> Path:
    """Write a file completely or not at all."""
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


# An HTML file that works offline and makes no request: its style, its script, its policy.
#
# Both are hashed in the policy, so that nothing else can run.


def _colours(palette: tuple[str, ...]) -> str:
    return "".join(f"--c{place}:{colour};" for place, colour in enumerate(palette))


def _read_asset(name: str) -> str:
    # importlib.resources also reads a package that lies in an archive; a path beside
    # this file would not.
    return files("secateurs_lab.report").joinpath(name).read_text(encoding="utf-8")


_LIGHT = f"--ink:{INK[0]};--paper:{INK[1]};--line:#d5d5d5;--soft:#f3f3f3;{_colours(LIGHT)}"
_DARK = f"--ink:{PAPER[0]};--paper:{PAPER[1]};--line:#444;--soft:#242424;{_colours(DARK)}"

# The switch of the page wins over the setting of the system, in both directions.
STYLE = (
    f":root{{{_LIGHT}}}\n"
    f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{_DARK}}}}}\n"
    f":root[data-theme=dark]{{{_DARK}}}\n"
    + "".join(f".c{place}{{color:var(--c{place})}}" for place in range(len(LIGHT)))
    + "\n"
    + _read_asset("page.css")
)

SCRIPT = _read_asset("page.js")


MAIN = "frontier"
"""The panel that a study is made for."""

MARK = '<meta name="generator" content="secateurs">'
"""In the head of every page of ours."""


def is_page(path: Path) -> bool:
    """Whether a page can be written here: a page of ours is there, or nothing."""
    if not os.path.lexists(path):
        return True
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return MARK.encode() in file.read(200)


def document(title: str, body: str) -> str:
    """A whole page around this body, which is HTML already; the title is text."""
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        f"{MARK}"
        f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        '<header><button type="button" id="theme" hidden>light or dark</button></header>'
        f"<main><h1>{escape(title)}</h1>{body}</main>"
        f'<div id="tip" role="status" hidden></div><script>{SCRIPT}</script></body></html>\n'
    )


def _policy() -> str:
    """No request leaves the page, and no script runs but the one it was written with."""
    script, style = (_hash(text) for text in (SCRIPT, STYLE))
    # 'none' comes first: whatever is not named after it
    # (images, requests, frames) is refused.
    return f"default-src 'none'; script-src '{script}'; style-src '{style}'; base-uri 'none'"


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


# All parts of a page.

QUANTITIES: tuple[tuple[str, str, Callable[[Point], float | None]], ...] = (
    ("loss", "training loss", lambda point: point.loss),
    ("accuracy", "test accuracy %", lambda point: _percent(point.test_accuracy)),
    ("sparsity", "zeros %", lambda point: _percent(point.sparsity)),
    ("strength", "strength λ", lambda point: point.strength),
    ("misalignment", "misalignment of the factors", lambda point: point.misalignment),
)
"""What a training shows over its epochs."""


def panels(
    rows: Sequence[Row],
    *,
    overlaps: Sequence[Overlap] = (),
    published: Sequence[Published] = (),
) -> list[Panel]:
    """All parts of one network's and data set's page that have something to show."""
    # Hidden runs were only needed by others: they are
    # no result, but their time is counted.
    every, rows = rows, [row for row in rows if not row.hidden]
    colour, first = colours(rows), first_seeds(rows)
    found = [
        *frontier_panels(rows, colour, published),
        *_dynamics(first, colour),
        *layer_panels(first),
        *_histograms(first, colour),
        *(overlap_panel(each) for each in overlaps),
        *_tables(rows, first, every),
    ]
    # A panel without numbers would be an empty frame under a head.
    return [panel for panel in found if panel.table.cells]


def _dynamics(first: Sequence[Row], colour: Mapping[str, int]) -> Iterator[Panel]:
    shown = spread([row for row in first if len(row.history) > 1])
    some = f" {MOST} of {len(first)} settings are drawn." if len(first) > MOST else ""
    for name, label, of in QUANTITIES:
        lines = dynamics(shown, of, colour)
        if lines:
            yield Panel(
                name=f"training-{name}",
                head="Training over time",
                text="One seed of each setting; of one method, the larger the compression (or λ)"
                f" the more broken the line.{some}",
                drawing=chart(lines, x="epoch", y=label, marks=False),
                table=tables.marks(lines, "epoch", label),
            )


def _histograms(first: Sequence[Row], colour: Mapping[str, int]) -> Iterator[Panel]:
    # The dense network is in every histogram: it shows what pruning took away.
    dense = [row for row in first if row.kind == "dense"][:1]
    for compression in compressions(first):
        near = [*dense, *at(first, compression)]
        lines = [histogram(r, colour.get(r.label, 0)) for r in near if _magnitudes(r)]
        if len(lines) > len(dense):
            yield Panel(
                name=f"magnitudes-{compression:g}",
                head="Magnitudes of the remaining weights",
                text="Percent of the non-zero weights in each quarter of a decade.",
                drawing=chart(
                    lines,
                    x=f"|w| at about {compression:g}×",
                    y="percent of kept weights",
                    log_x=True,
                    log_y=False,
                    marks=False,
                ),
                table=tables.marks(lines, "magnitude", "percent"),
            )


def _magnitudes(row: Row) -> bool:
    return any(any(layer.histogram) for layer in row.layers)


def _tables(rows: Sequence[Row], first: Sequence[Row], every: Sequence[Row]) -> Iterator[Panel]:
    yield Panel(
        name="certificates",
        head="Certificates",
        text="How far the outputs of the sparse and the dense network differ: the largest"
        " difference lies between the two numbers.",
        table=tables.certificates(first),
    )
    yield Panel(
        name="cost",
        head="Cost and time",
        text="Seconds of the median run, stage by stage. A pruned network also needs the"
        " training of the network it was cut from.",
        # With the hidden runs: a pruned network costs
        # the training of its dense one, too.
        table=cost(every),
    )
    yield Panel(
        name="runs",
        head="Runs",
        text=_ends(rows),
        table=tables.runs(rows),
        folded=True,
    )


def _ends(rows: Sequence[Row]) -> str:
    states = [row.state for row in rows]
    counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    return f"{len(rows)} runs: {', '.join(counts)}."


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


# How a study was done, in words: every setting, what all runs share and what each method adds.

KEYS = ("seed", "compression", "parent", "rewind", "data.root", "data.name")
"""Settings that are shown elsewhere, or that are names of other runs."""
MACHINE = ("machine", "device", "threads", "precision", "data_hash")


def methods_paragraph(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Heads and sentences: the networks, the training, each method, the machine."""
    rows = [row for row in rows if row.settings and not row.hidden]
    if not rows:
        return []
    shown = [_settings(row) for row in rows]
    common = {key: value for key, value in shown[0].items() if _same(key, shown)}
    parts = [("What was run", _what(rows)), ("All runs share", _settings_text(common))]
    for label in dict.fromkeys(row.label for row in rows):
        mine = [own for own, row in zip(shown, rows, strict=True) if row.label == label]
        parts.append((label, _particulars(mine, common)))
    return [*parts, *_machine(rows)]


def _settings(row: Row) -> dict[str, Any]:
    # KEYS has names of tables and names with dots, so it
    # is asked before and after flattening.
    found = flat({key: row.settings[key] for key in row.settings if key not in KEYS})
    return {key: value for key, value in found.items() if key not in KEYS and _acts(key, found)}


def _acts(key: str, settings: Mapping[str, Any]) -> bool:
    """Whether a setting does anything; the JSON below the paragraph has them all."""
    table, _, name = key.rpartition(".")
    if name in ("decay_at", "decay_by"):
        return settings.get(f"{table}.schedule") == "step"
    value = settings[key]
    idle = value is None or value is False or value in ("", [], {})
    off = name in ("warmup", "weight_decay", "momentum") and str(value) in ("0", "0.0", "0it")
    return not (idle or off)


def _same(key: str, shown: Iterable[Mapping[str, Any]]) -> bool:
    # Compared as text, because a list cannot be an element of a set.
    return len({str(own.get(key, "")) for own in shown}) == 1


def _particulars(mine: Sequence[Mapping[str, Any]], common: Mapping[str, Any]) -> str:
    """The settings particular to a method; a list of strengths is shown as a list."""
    # A dict and not a set: settings are shown in the order in which they were given.
    keys = dict.fromkeys(key for own in mine for key in own if key not in common)
    values = {
        key: list(dict.fromkeys(_word(own[key]) for own in mine if key in own)) for key in keys
    }
    return _settings_text({key: ", ".join(found) for key, found in values.items()})


def _what(rows: Sequence[Row]) -> str:
    models, data = (
        ", ".join(dict.fromkeys(values))
        for values in ((r.model for r in rows), (r.data for r in rows))
    )
    # Methods may prune different layers, so one network can have several totals.
    sizes = {(r.model, r.total) for r in rows if r.total}
    weights = "".join(f" {model} has {total:,} prunable weights." for model, total in sorted(sizes))
    seeds = _seeds(sorted({row.seed for row in rows}))
    asked = ", ".join(f"{value:g}×" for value in sorted({r.asked or 0 for r in rows} - {0}))
    asked = f" Compressions asked for: {asked}." if asked else ""
    return f"{models} on {data}.{weights} Seeds: {seeds}.{asked}"


def _seeds(seeds: Sequence[int]) -> str:
    """Every seed; a long unbroken row by its ends."""
    if len(seeds) > 5 and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def _settings_text(settings: Mapping[str, Any]) -> str:
    """Settings by their table: "train: length 20ep, batch 128; method: depth 3"."""
    groups: dict[str, list[str]] = {}
    for key, value in settings.items():
        table, _, name = key.rpartition(".")
        groups.setdefault(table, []).append(f"{name} {_word(value)}")
    said = [
        f"{table}: {', '.join(found)}" if table else ", ".join(found)
        for table, found in groups.items()
    ]
    return f"{'; '.join(said)}." if said else "nothing else."


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == "":
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _machine(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Versions and machines, each different one once."""
    found = dict.fromkeys(
        _settings_text(
            {
                **{key: row.provenance[key] for key in MACHINE if key in row.provenance},
                **dict(row.provenance.get("versions", {})),
            }
        )
        for row in rows
        if row.provenance
    )
    return [("Computed with", " ".join(found))] if found else []


# Panels as HTML: those under one head side by side, each with its files as links.


def section(head: str, found: Sequence[Panel]) -> str:
    """Panels under one head stand side by side."""
    body = f"<h2>{escape(head)}</h2>" if head else ""
    # No heading level is skipped: screen readers use them for navigation.
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
    # The main figure is as wide as the page, whatever stands beside it.
    wide = ' class="wide"' if panel.name == MAIN else ""
    return f"<figure{wide}>{inner}{links}</figure>"


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
    return f'<a download="{escape(name)}" href="data:{kind};base64,{data}">{label}</a>'


def write_page(
    store: str | Path,
    out: str | Path,
    *,
    published: Sequence[Published] = (),
    figures: str | Path | None = None,
) -> Path:
    """Write the page of a study's store; the file is complete or not there.

    Args:
        store: The folder of the store.
        out: The HTML file; or a file ending in .md, for the main tables as Markdown.
        published: Published figures to be drawn dotted, besides those that the study names and
            those that ship with the package for the same network and data.
        figures: A folder for every figure and table as files of their own (SVG, CSV, Markdown,
            LaTeX).

    >>> import tempfile
    >>> from secateurs_lab.study.store import Store
    >>> folder = Path(tempfile.mkdtemp())
    >>> Store.create(folder / "a.study").close()
    >>> write_page(folder / "a.study", folder / "page.html").name
    'page.html'
    """

    out = Path(out)
    with Store.open(store) as opened:
        # Runs that other runs needed are not lines of a figure, but their cost is counted.
        rows = opened.rows(hidden=True)
        laid = overlaps(opened, [row for row in rows if not row.hidden])
        study = opened.note("study") or {}
        own = named_figures(opened.note("published") or {})
    name = str(study.get("name") or Path(store).stem)
    printed = [*published, *own, *shipped_figures()]
    if out.suffix == ".md":
        text = summary(rows, name=name)
    else:
        text = page(rows, name=name, overlaps=laid, published=printed)
    write_text(out, text)
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
    """The page of these runs as HTML text. Everything in a row is shown as text, never run."""
    found = parts(rows, overlaps=overlaps, published=published)
    tuned = {_head(row) for row in rows if CANDIDATE in row.label}
    body = "".join(section(*part) for part in found if part[0] not in tuned)
    # What was compared comes first; how its settings were chosen, for those who ask.
    tuning = "".join(section(*part) for part in found if part[0] in tuned)
    if tuning:
        chosen = ", ".join(chosen_candidates(rows)) or "nothing yet"
        body += (
            f"<details><summary>Tuning on held-out images; chosen: {escape(chosen)}</summary>"
            f"{tuning}</details>"
        )
    return document(name, f"{_lead(rows)}{body}{_methods(rows)}")


def _head(row: Row) -> str:
    return f"{row.model} on {row.data}"


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
    """What was compared, in two lines; and what went wrong, so that nobody misses it."""
    ours = [row for row in rows if not row.hidden]
    if not any(map(is_result, ours)):
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
        f"<p><b>{escape(head)}</b>: {escape(text)}</p>" for head, text in methods_paragraph(rows)
    )
    entries = "".join(
        f"<details><summary>{escape(row.label)}</summary><pre>"
        f"{escape(json.dumps(dict(row.settings), indent=1, sort_keys=True))}\n"
        f"{escape(json.dumps(dict(row.provenance), indent=1, sort_keys=True))}</pre></details>"
        # One run stands for its method: the others
        # differ in seed, compression or strength.
        for row in {row.label: row for row in rows}.values()
    )
    return f"<section><h2>Methods</h2>{said}<h3>As JSON</h3>{entries}</section>" if said else ""
