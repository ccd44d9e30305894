"""Figures 6, 7, 13, 15 to 20 and 24 of the weight-factorization paper: epoch by epoch."""

from collections.abc import Iterator, Sequence

from secateurs.report.panel import Panel
from secateurs.report.reproduced.figure import (
    FIGURES,
    groups_by,
    line,
    panel,
    point,
    positive,
)
from secateurs.study.reproduce.experiment import Row

QUANTITIES = {
    "compression": ("compression", True),
    "accuracy": ("test accuracy %", False),
    "norm": ("norm of the collapsed weights", False),
    "misalignment": ("misalignment of the factors", True),
    "loss": ("training loss", True),
}
"""What is drawn over the epochs, and whether on a logarithm."""

LAYERS = ("weight", "bias")
"""What a layer of the fully connected net has, in this order."""


@FIGURES.register("weight-factorization-dynamics")
def dynamics(rows: Sequence[Row]) -> Iterator[Panel]:
    """By depth, by λ, and by start and rate; then layer by layer; then the parts of the loss."""
    for name, (words, own) in _comparisons(rows).items():
        for column, (label, log) in QUANTITIES.items():
            lines = [
                line(
                    title, (point(row, "epoch", column) for row in one), colour=place
                )
                for place, (title, one) in enumerate(own.items())
            ]
            yield panel(
                f"{name}-{column}",
                f"Figures 6, 7, 13, 19 and 24: {words}",
                "One seed of each training.",
                lines,
                x="epoch",
                y=label,
                log_y=log,
                marks=False,
            )
    for strength, run in _by_strength(rows).items():
        yield from _layers(f"λ {strength}", strength, run)
        yield _losses(f"λ {strength}", strength, run)


def _comparisons(rows: Sequence[Row]) -> dict[str, tuple[str, dict[str, list[Row]]]]:
    """The trainings that differ from the usual one in a single setting."""
    usual = rows[0]
    found = {}
    sets = {
        "depth": ("depths", ("depth",), "depth {}"),
        "strength": ("strengths", ("strength",), "λ {}"),
        "start": (
            "starts and rates",
            ("init", "anneal"),
            "init {}, cosine to the power {}",
        ),
    }
    for name, (words, columns, title) in sets.items():
        fixed = {"depth", "strength", "init", "rate", "anneal"} - set(columns)
        own = [row for row in rows if all(row[f] == usual[f] for f in fixed)]
        groups = {
            title.format(*key): g for key, g in groups_by(own, *columns).items()
        }
        # A single training is no comparison; it is drawn once, with the depths.
        if len(groups) > 1 or name == "depth":
            found[name] = (words, groups)
    return found


def _by_strength(rows: Sequence[Row]) -> dict[str, list[Row]]:
    _, groups = _comparisons(rows).get("strength", ("", {}))
    usual = rows[0]["strength"]
    found = {own[0]["strength"]: own for own in groups.values()}
    return found or {usual: [row for row in rows if row["job"] == rows[0]["job"]]}


def _layers(head: str, name: str, rows: Sequence[Row]) -> Iterator[Panel]:
    """Figures 17 and 18: remaining weights, norm and misalignment of every layer."""
    kept = _per_layer(rows, "kept")
    # After the first epoch nothing is zero yet, so the largest count is the layer's size.
    shares = [[100 * k / max(counts) for k in counts] for counts in kept]
    parts = {
        "kept": ("Figure 17", "kept weights of a layer %", shares, False),
        "norms": ("Figure 17", "norm of a layer", _per_layer(rows, "norms"), True),
        "misalignments": (
            "Figure 18",
            "misalignment of a layer",
            _per_layer(rows, "misalignments"),
            True,
        ),
    }
    epochs = [float(row["epoch"]) for row in rows]
    for column, (figure, label, values, log) in parts.items():
        lines = [
            line(title, zip(epochs, layer, strict=True), colour=place)
            for place, (title, layer) in enumerate(_named(values))
        ]
        yield panel(
            f"layers-{column}-{name}",
            f"{figure}: layer by layer, {head}",
            "",
            lines,
            x="epoch",
            y=label,
            log_y=log
            and all(v > 0 for one in lines for v in (d.y for d in one.dots)),
            marks=False,
        )


def _losses(head: str, name: str, rows: Sequence[Row]) -> Panel:
    """Figure 20: the loss of the data, and the penalty parted by Lemma 1."""
    parts = {
        "loss": "loss",
        "minimal_penalty": "penalty of the collapsed weights",
        "excess_penalty": "excess of the penalty (misalignment)",
    }
    lines = [
        line(title, (point(row, "epoch", column) for row in rows), colour=place)
        for place, (column, title) in enumerate(parts.items())
    ]
    return panel(
        f"losses-{name}",
        f"Figure 20: parts of the loss, {head}",
        "",
        [positive(one) for one in lines],
        x="epoch",
        y="part of the loss",
        log_y=True,
        marks=False,
    )


def _per_layer(rows: Sequence[Row], column: str) -> list[list[float]]:
    """A list for each parameter, a number for each epoch."""
    epochs = [[float(value) for value in row[column].split()] for row in rows]
    return [list(values) for values in zip(*epochs, strict=True)]


def _named(
    values: Sequence[Sequence[float]],
) -> Iterator[tuple[str, Sequence[float]]]:
    """Weights only: print shows these."""
    for place, found in enumerate(values):
        layer, part = divmod(place, len(LAYERS))
        if LAYERS[part] == "weight":
            yield f"layer {layer + 1}", found
