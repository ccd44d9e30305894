"""A bound on the test error of LeNet-300-100 from its length as a message, against compression.

    python benchmarks/description_length.py [--data fashion-mnist] [--out FILE.csv]

Trains by deep weight factorization (our own recipe of `weight-factorization`: a moving λ, rate 0.5,
25 epochs of tuning after the cut; on the digits 300 epochs of batch 64 at rate 0.3), then writes
each network as a message, with its values tuned for 300 steps. The test set is looked at for the
last column only. A row that FILE.csv has already is not trained again.

    python benchmarks/description_length.py --draw

draws the figures anew from FILE.csv and prints the tables.
"""

import argparse
import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import torch

from experiments.factorization import plans
from experiments.factorization.training import train, tuned_accuracy
from experiments.figures import COMPRESSION, Row, groups_by, line, panel, write_figures
from secateurs.base.copies import call_with
from secateurs.optim.factorized.collapse import gap
from secateurs.theory import description_length
from secateurs_lab.report.tables import Panel

RESULTS = Path(__file__).parent / "results"
STRENGTHS = {
    "fashion-mnist": (4e-3, 6e-3, 2e-3, 8e-3, 1e-3, 3e-3, 1.2e-2),
    "digits": (2e-3, 6e-3, 1e-2, 4e-3, 1e-3, 1.5e-2, 8e-3),
}
"""λ of each data set, the most telling first."""

SETTINGS = {
    "fashion-mnist": replace(plans.TEXT, **plans.OURS),
    # The larger rate of ours diverges on batches of 64.
    "digits": replace(plans.SHORT, **{**plans.OURS, "rate": plans.SHORT.rate}),
}


def measure(data: str, strength: float, *, seed: int, tune: int) -> Row:
    """Train, cut, tune, write as a message: one row."""
    begun = perf_counter()
    settings = replace(SETTINGS[data], strength=strength, seed=seed)
    images = plans.load_images(settings)
    trained = train(settings, images)
    model = trained.cut_(gap(trained.weights))
    tuned_accuracy(model, settings, images)
    found = description_length(
        model,
        images.train_x,
        images.train_y,
        tune=tune,
        generator=torch.Generator().manual_seed(seed),
        batch=10_000,
    )
    with torch.no_grad():
        answers = call_with(model, found.weights, (images.test_x,)).argmax(1)
    wrong = float((answers != images.test_y).float().mean())
    numbers = {
        "strength": strength,
        "seed": seed,
        "kept": found.kept,
        "compression": round(found.compression, 1),
        "bits": round(found.bits, 1),
        "values": found.levels,
        "samples": found.samples,
        "training_error": round(found.training_error, 6),
        "bound": round(found.bound, 6),
        "test_error": round(wrong, 6),
        "seconds": round(perf_counter() - begun, 1),
    }
    return {"data": data, **{name: f"{value:.10g}" for name, value in numbers.items()}}


def read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


HEADS = {
    "strength": "λ",
    "kept": "weights",
    "compression": "compression",
    "bits": "bits",
    "values": "values",
    "training_error": "wrong in training",
    "bound": "**bound**",
    "test_error": "wrong in test",
}


def table(rows: Sequence[Row]) -> str:
    """One data set, from dense to sparse."""
    lines = ["| " + " | ".join(HEADS.values()) + " |", "| --- " * len(HEADS) + "|"]
    for row in sorted(rows, key=lambda row: float(row["compression"])):
        cells = {name: row[name] for name in HEADS}
        for name in ("training_error", "bound", "test_error"):
            cells[name] = f"{float(row[name]):.2%}"
        cells["compression"] = f"{float(row['compression']):.0f}×"
        cells["bits"] = f"{float(row['bits']):,.0f}"
        cells["bound"] = f"**{cells['bound']}**"
        lines.append("| " + " | ".join(cells.values()) + " |")
    return "\n".join(lines)


def curve(data: str, rows: Sequence[Row]) -> Panel:
    """The bound, and what the network gets wrong, against compression."""
    words = {
        "bound": "bound at 95 %",
        "test_error": "wrong in test",
        "training_error": "in training",
    }
    lines = [
        line(name, [(float(r["compression"]), 100 * float(r[column])) for r in rows], colour=place)
        for place, (column, name) in enumerate(words.items())
    ]
    return panel(
        data,
        f"What its length proves of a LeNet-300-100 on {data}",
        "Each mark is one training by deep weight factorization.",
        lines,
        x=COMPRESSION,
        y="wrong answers %",
        log_x=True,
        log_y=False,
        level=("Lotfi et al. 2022", 32.8) if data == "fashion-mnist" else None,
    )


def draw(rows: Sequence[Row]) -> None:
    """Figures into `results/figures`; the tables are printed."""
    for (data,), own in groups_by(rows, "data").items():
        write_figures(RESULTS / "figures", "description-length", [curve(data, own)])
        print(f"## {data}\n\n{table(own)}\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--data", choices=[*STRENGTHS], nargs="*", default=[*STRENGTHS])
    parser.add_argument("--strengths", type=float, nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tune", type=int, default=300)
    parser.add_argument("--out", type=Path, default=RESULTS / "description_length.csv")
    args = parser.parse_args()
    if args.draw:
        draw(read(args.out))
        return
    torch.set_num_threads(1)
    for data in args.data:
        for strength in args.strengths or STRENGTHS[data]:
            rows = read(args.out)
            own = (data, f"{strength:.10g}", str(args.seed))
            if own in {(row["data"], row["strength"], row["seed"]) for row in rows}:
                continue
            rows.append(measure(data, strength, seed=args.seed, tune=args.tune))
            print(rows[-1], flush=True)
            write(args.out, rows)


if __name__ == "__main__":
    main()
