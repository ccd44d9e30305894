"""The tables of Qian & Klabjan (2021) as experiments."""

from collections.abc import Iterator, Sequence
from functools import partial

from secateurs.data import load
from secateurs.errors import DataError
from secateurs.study.reproduce.experiment import (
    EXPERIMENTS,
    Beside,
    Experiment,
    Job,
    Row,
    Scale,
)
from secateurs.study.reproduce.probabilistic import tables
from secateurs.study.reproduce.probabilistic.moments import (
    data_at_hand,
    network,
    train_network,
    weight_moments,
)
from secateurs.train import evaluate

MATRICES = {"smoke": (100, 50), "cpu": (1_000, 500), "full": (1_000, 500)}
"""Matrices per row of tables 2 and 3; print's are 1,000 and 500."""


def norm_jobs(scale: Scale) -> list[Job]:
    """Tables 2 and 3, seconds each."""
    second, third = MATRICES[scale]
    return [
        Job(name=f"table 2, {second} matrices", work=partial(_cells, 2, second)),
        Job(name=f"table 3, {third} matrices", work=partial(_cells, 3, third)),
    ]


def _cells(table: int, matrices: int) -> Iterator[dict[str, object]]:
    found = (tables.norm_constants if table == 2 else tables.latala_constants)(
        matrices=matrices
    )
    for row in found:
        for cell in row.cells:
            numbers = {
                "measured": float(cell.measured),
                "mc_error": float(cell.error),
                "printed": cell.printed,
            }
            yield {
                "table": table,
                "row": row.label,
                "quantity": cell.name,
                **numbers,
                "z": float(cell.z),
            }


def norms_beside(rows: Sequence[Row]) -> list[Beside]:
    """Every number, its deviation in standard errors in the note."""
    return [
        Beside(
            what=f"table {row['table']}, {row['row']}, {row['quantity']}",
            ours=(float(row["measured"]),),
            printed=float(row["printed"]),
            note=f"{float(row['z']):+.1f} standard errors",
        )
        for row in rows
    ]


def moment_jobs(scale: Scale) -> list[Job]:
    """Table 1: networks from Glorot's start and from PyTorch's, on the data that is there."""
    if scale == "smoke":
        return [
            Job(
                name="digits, width 128, 3 epochs, glorot, seed 0",
                work=partial(_moments, "digits", 128, 3, 0),
            )
        ]
    # At full scale nothing else may stand in for the data of print.
    data = "covertype" if scale == "full" else data_at_hand()[0].name
    epochs = 20 if data == "covertype" else 10
    return [
        Job(
            name=f"{data}, width 1024, {epochs} epochs, glorot, seed {seed}",
            work=partial(_moments, data, 1_024, epochs, seed),
        )
        for seed in (0, 1, 2)
    ]


def _moments(
    data: str, width: int, epochs: int, seed: int
) -> Iterator[dict[str, object]]:
    """Moments per layer before and after training, and the histogram of figure 1 as counts."""
    try:
        dataset = load(data)
    except DataError as error:
        raise DataError(f"table 1 was trained on Covertype, and {error}") from None
    # By the seed of the training below: its own weights before it begins.
    before = weight_moments(network(dataset, width=width, seed=seed, start="glorot"))[
        0
    ]
    model = train_network(data=dataset, width=width, epochs=epochs, seed=seed)
    rows, found = weight_moments(model)
    accuracy = 100 * evaluate(model, dataset).accuracy
    for number, (old, row, layer) in enumerate(
        zip(before, rows, found.layers, strict=True), start=1
    ):
        figures = {
            "start_variance": old.variance,
            "mean": row.mean,
            "variance": row.variance,
            "accuracy": accuracy,
        }
        # In one cell, since all rows of a file have the same columns.
        counts = " ".join(str(int(count)) for count in layer.counts)
        yield {
            "data": data,
            "width": width,
            "epochs": epochs,
            "seed": seed,
            "layer": number,
            **figures,
            "low": layer.edges[0],
            "high": layer.edges[-1],
            "counts": counts,
        }


def moments_beside(rows: Sequence[Row]) -> list[Beside]:
    """Means and variances per layer over the seeds; print's are of Covertype."""
    printed = {line["layer"]: line for line in tables.reference(1)}
    found = []
    for layer in dict.fromkeys(row["layer"] for row in rows):
        for quantity in ("mean", "variance"):
            ours = tuple(
                float(row[quantity]) for row in rows if row["layer"] == layer
            )
            what = f"layer {layer}: {quantity} of the trained weights"
            found.append(
                Beside(what=what, ours=ours, printed=float(printed[layer][quantity]))
            )
    return found


EXPERIMENTS.register("probabilistic-norms")(
    Experiment(
        name="probabilistic-norms",
        paper="Qian & Klabjan 2021",
        what="tables 2, 3: the constants of Lemmas 3 and 4",
        jobs=norm_jobs,
        beside=norms_beside,
        settings={
            "smoke": "100 and 50 matrices a row",
            "cpu": "as in print: 1,000 and 500 matrices a row",
            "full": "as in print: 1,000 and 500 matrices a row",
        },
    )
)
EXPERIMENTS.register("probabilistic-moments")(
    Experiment(
        name="probabilistic-moments",
        paper="Qian & Klabjan 2021",
        what="table 1, figure 1: moments and histograms of trained weights, from Glorot's start",
        jobs=moment_jobs,
        beside=moments_beside,
        settings={
            "smoke": "width 128, digits, 3 epochs",
            "cpu": "width 1,024, Covertype 20 epochs if it is there, else Fashion-MNIST 10 epochs",
            "full": "width 1,024, Covertype, 20 epochs, Adam at 0.001, batch 512",
        },
    )
)
