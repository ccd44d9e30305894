"""What the demo shows and writes."""

import csv
from dataclasses import asdict, fields
from pathlib import Path

from rich.table import Table

from secateurs.demo.bench import Outcome, Row
from secateurs.demo.shipping import FILE, ship
from secateurs.masks import save_masks
from secateurs.train import replacing, save_model


def table(outcome: Outcome) -> Table:
    """Test accuracy by method and sparsity, with that before fine-tuning in brackets."""
    bench = outcome.bench
    shown = Table(
        title=f"LeNet-300-100 on {bench.data.name}: test accuracy (before fine-tuning)",
        caption=(
            f"dense {bench.dense_accuracy:.1%}; written: {outcome.best.method} at"
            f" {outcome.best.sparsity:.1%}"
        ),
    )
    shown.add_column("method")
    for share in bench.settings.sparsities:
        shown.add_column(f"{share:.1%} sparse", justify="right")
    for name in dict.fromkeys(row.method for row in outcome.rows):
        cells = [
            f"{row.accuracy:.1%} ({row.before:.1%})"
            for row in outcome.rows
            if row.method == name
        ]
        shown.add_row(name, *cells)
    return shown


def write(outcome: Outcome, out: Path) -> list[Path]:
    """Dense and pruned checkpoint, masks, the sparse file with its certificate, and the results as
    CSV and Markdown. Returns the files.
    """
    data = outcome.bench.data
    notes = {"arch": "lenet-300-100", "classes": str(data.classes)}
    notes |= {"in_channels": str(data.in_channels), "size": str(data.size)}
    names = (
        "dense.safetensors",
        "pruned.safetensors",
        "masks.safetensors",
        "results.csv",
        "results.md",
    )
    dense, pruned, masks, rows, text = (out / name for name in names)
    save_model(outcome.bench.dense, dense, notes=notes)
    save_model(outcome.candidate.model, pruned, notes=notes)
    save_masks(outcome.candidate.masks, masks)
    with replacing(rows) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in outcome.rows)
    with replacing(text) as part:
        part.write_text(_markdown(outcome), encoding="utf-8")
    ship(outcome, out, notes)
    return [dense, pruned, masks, out / FILE, rows, text]


def _markdown(outcome: Outcome) -> str:
    bench = outcome.bench
    head = [
        (
            f"LeNet-300-100 on {bench.data.name}, seed {bench.settings.seed}; dense accuracy"
            f" {bench.dense_accuracy:.2%}."
        ),
        f"`pruned.safetensors` is {outcome.best.method} at {outcome.best.sparsity:.2%} sparsity.",
        "",
        "| method | sparsity | compression | before fine-tuning | accuracy | seconds |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    return "\n".join([*head, *(_line(row) for row in outcome.rows), ""])


def _line(row: Row) -> str:
    shares = f"{row.sparsity:.2%} | {row.compression:.1f} | {row.before:.2%} | {row.accuracy:.2%}"
    return f"| {row.method} | {shares} | {row.seconds:.1f} |"
