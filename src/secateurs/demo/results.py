"""The table of the demo, and its files."""

from pathlib import Path
from statistics import median

from rich.table import Table

from secateurs.demo.outcome import Outcome
from secateurs.demo.shipping import FILE, ship
from secateurs.masks import save_masks
from secateurs.parameters import prunable
from secateurs.report import tables
from secateurs.report.series import frontier
from secateurs.study import Row
from secateurs.train import replacing, save_model


def table(outcome: Outcome) -> Table:
    """Median test accuracy by method and compression."""
    rows, best = outcome.rows, outcome.best
    asked = sorted({row.asked for row in rows if row.asked})
    seeds = len({row.seed for row in rows})
    shown = Table(
        title=f"LeNet-300-100 on {outcome.data.name}: test accuracy"
        + (f", median of {seeds} seeds" if seeds > 1 else ""),
        caption=f"dense {tables.dense_accuracy(rows):.1f} %; shipped: {best.label} at"
        f" {best.compression:.0f}×, seed {best.seed}, {100 * (best.accuracy or 0):.1f} %",
    )
    shown.add_column("method")
    for compression in asked:
        shown.add_column(f"{compression:g}× smaller", justify="right")
    for label in dict.fromkeys(row.label for row in rows if row.asked):
        cells = (
            _cell([r for r in rows if (r.label, r.asked) == (label, c)])
            for c in asked
        )
        shown.add_row(label, *cells)
    return shown


def _cell(group: list[Row]) -> str:
    """The median, or how the runs ended that have no accuracy."""
    found = [100 * row.accuracy for row in group if row.accuracy is not None]
    ends = sorted({row.state for row in group if row.accuracy is None})
    return f"{median(found):.1f} %" if found else ", ".join(ends)


def write(outcome: Outcome, out: Path) -> list[Path]:
    """Dense and pruned checkpoint, masks, the sparse file with its certificate, and the results as
    CSV and Markdown. Returns the files.
    """
    data = outcome.data
    notes = {"arch": "lenet-300-100", "classes": str(data.classes)}
    notes |= {"in_channels": str(data.in_channels), "size": str(data.size)}
    dense, pruned, masks = (
        out / f"{name}.safetensors" for name in ("dense", "pruned", "masks")
    )
    save_model(outcome.dense, dense, notes=notes)
    save_model(outcome.sparse, pruned, notes=notes)
    kept = {name: p != 0 for name, p in prunable(outcome.sparse).items()}
    save_masks(kept, masks)
    ship(outcome, out, notes)
    runs = tables.runs(outcome.rows)
    rows = _text(out / "results.csv", runs.csv())
    text = _text(out / "results.md", _markdown(outcome))
    return [dense, pruned, masks, out / FILE, rows, text]


def _text(path: Path, text: str) -> Path:
    # A table that is being read elsewhere is replaced whole.
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


def _markdown(outcome: Outcome) -> str:
    """The page's two tables that fit a text."""
    rows, dense = outcome.rows, tables.dense_accuracy(outcome.rows) or 0.0
    lines = [line for line in frontier(rows) if line.name != outcome.before.label]
    head = (
        f"LeNet-300-100 on {outcome.data.name}; the dense network has {dense:.2f} %.\n"
        f"`pruned.safetensors` is {outcome.best.label} at {outcome.best.compression:.1f}×,"
        f" seed {outcome.best.seed}.\n"
    )
    largest = tables.largest(lines, dense).markdown()
    parts = [head, "Largest compression:\n", largest, "\nAll runs:\n"]
    return "\n".join([*parts, tables.runs(rows).markdown(), ""])
