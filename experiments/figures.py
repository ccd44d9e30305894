"""The figures of the published experiments, drawn from their rows beside the printed ones."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from statistics import fmean, median
from typing import Any, TypeAlias

from experiments.experiment import COLUMNS, Experiment, Row, cells
from experiments.factorization.plain_l1 import CUTS, PENALTIES, envelope
from experiments.factorization.plans import at, by_recipe
from experiments.factorization.training import (
    OURS,
    OURS_AS_PRINTED,
    RESTORED,
    START,
    TEXT,
    columns_of,
    method_of,
)
from experiments.path_pruning import METHODS
from secateurs.base.registry import Registry
from secateurs_lab.report import tables
from secateurs_lab.report.figures import chart
from secateurs_lab.report.page import document, section, write_text
from secateurs_lab.report.published import printed_rows, shipped_figures
from secateurs_lab.report.series import ChartLine, Dot, number
from secateurs_lab.report.tables import Panel, Table

# Shared by all figures of the papers: lines from rows, and a panel around a chart.

Figures: TypeAlias = Callable[[Sequence[Row]], Iterator[Panel]]

FIGURES: Registry[Figures] = Registry("figures of an experiment")
"""The figures of an experiment, by its name."""

COMPRESSION = "compression (all parameters / kept)"
ACCURACY = "test accuracy %"
FRONTIER: dict[str, Any] = {"x": COMPRESSION, "y": ACCURACY, "log_x": True, "log_y": False}
"""The axes of accuracy against compression."""


def panel(
    name: str,
    head: str,
    text: str,
    lines: Iterable[ChartLine],
    *,
    x: str,
    y: str,
    **how: Any,
) -> Panel:
    """A chart with its numbers; `how` is passed to `chart`. Lines without a mark are left out."""
    shown = [line for line in lines if line.dots]
    return Panel(
        name=name,
        head=head,
        text=text,
        drawing=chart(shown, x=x, y=y, **how) if shown else None,
        table=tables.marks(shown, x, y),
    )


def line(
    name: str,
    points: Iterable[tuple[float, float]],
    *,
    colour: int = 0,
    printed: bool = False,
    joined: bool = True,
) -> ChartLine:
    """Points from left to right; those that are not numbers (a run that diverged) are left out."""
    found = sorted(p for p in points if all(map(math.isfinite, p)))
    dots = (Dot(x=x, y=y, low=y, high=y, text=_tooltip(name, x, y)) for x, y in found)
    return ChartLine(name=name, dots=tuple(dots), colour=colour, printed=printed, joined=joined)


def lines_of(named: Iterable[tuple[str, Iterable[tuple[float, float]]]]) -> list[ChartLine]:
    """A line for each name, each in a colour of its own."""
    return [line(name, points, colour=place) for place, (name, points) in enumerate(named)]


def over_seeds(
    name: str,
    groups: Iterable[Iterable[tuple[float, float]]],
    *,
    colour: int = 0,
) -> ChartLine:
    """One mark for each group of runs that differ only in their seeds: median, minimum, maximum."""
    dots = []
    for group in groups:
        points = [p for p in group if all(map(math.isfinite, p))]
        if points:
            x, y = median(p[0] for p in points), median(p[1] for p in points)
            heights = [p[1] for p in points]
            text = _tooltip(name, x, y)
            if len(points) > 1:
                text += f" (median of {len(points)} seeds)"
            dots.append(Dot(x=x, y=y, low=min(heights), high=max(heights), text=text))
    dots.sort(key=lambda dot: dot.x)
    return ChartLine(name=name, dots=tuple(dots), colour=colour, joined=True)


def positive(found: ChartLine) -> ChartLine:
    """The marks that have a place on a logarithmic axis, which are the positive ones."""
    return replace(found, dots=tuple(dot for dot in found.dots if dot.y > 0))


def groups_by(rows: Iterable[Row], *columns: str) -> dict[tuple[str, ...], list[Row]]:
    """Groups of rows that agree in these columns, in order of first appearance."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in columns), []).append(row)
    return found


def point(row: Row, x: str, y: str) -> tuple[float, float]:
    """Two columns of a row as numbers."""
    return float(row[x]), float(row[y])


def _tooltip(name: str, x: float, y: float) -> str:
    return f"{name}: {number(y)} at {number(x)}"


DIVERGED = "A training that diverged leaves no mark, and neither does a dead network."

CHANCE = 15.0
"""Percent: all data sets here have ten classes or more, and a dead network guesses one of them."""


@FIGURES.register("weight-factorization-depth")
def depths(rows: Sequence[Row]) -> Iterator[Panel]:
    """Figure 14: a panel for each rate, a line for each depth."""
    for (rate,), own in groups_by(rows, "rate").items():
        yield _frontier(
            f"rate-{rate}",
            f"Figure 14: depths at rate {rate}",
            own,
            ("depth",),
            "depth {}",
        )


@FIGURES.register("weight-factorization-rate")
def rates(rows: Sequence[Row]) -> Iterator[Panel]:
    """Figure 11: a panel for each depth; figures 5b and 12a: what a rate does."""
    for (depth,), own in sorted(groups_by(rows, "depth").items()):
        yield _frontier(
            f"depth-{depth}",
            f"Figure 11: rates at depth {depth}",
            own,
            ("rate",),
            "rate {}",
        )
    for column, label in (("compression", COMPRESSION), ("accuracy", ACCURACY)):
        lines = lines_of(
            (
                f"depth {depth}, λ {strength}",
                (point(row, "rate", column) for row in own if _alive(row)),
            )
            for (depth, strength), own in sorted(groups_by(rows, "depth", "strength").items())
        )
        yield panel(
            f"{column}-against-rate",
            "Figures 5b and 12a: what a rate does",
            f"Zeros need a rate that is large enough. {DIVERGED}",
            lines,
            x="rate",
            y=label,
            log_x=True,
        )


@FIGURES.register("weight-factorization-start")
def starts(rows: Sequence[Row]) -> Iterator[Panel]:
    """Figures 4 and 23: a panel for each network and depth, a line for each start."""
    for (model, depth), own in groups_by(rows, "model", "depth").items():
        yield _frontier(
            f"{model}-depth-{depth}",
            f"Figures 4 and 23: starts, {model}, depth {depth}",
            own,
            ("init", "spread", "match_variance"),
            _start,
            # Nets that are half dead would stretch the axis.
            floor=75.0,
        )


def _start(init: str, spread: str, restored: str) -> str:
    words = [init] + ([f"σ × {spread}"] if spread != "1" else [])
    return ", ".join(words + (["variance restored"] if restored == "True" else []))


def _frontier(name, head, rows, columns, words, **how) -> Panel:  # type: ignore[no-untyped-def]
    label = words if callable(words) else words.format
    lines = [
        over_seeds(
            label(*key),
            (
                [point(row, "compression", "accuracy") for row in group if _alive(row)]
                for group in groups_by(own, "strength").values()
            ),
            colour=place,
        )
        for place, (key, own) in enumerate(groups_by(rows, *columns).items())
    ]
    return panel(
        name,
        head,
        f"A mark for each λ. {DIVERGED}",
        lines,
        **FRONTIER,
        **how,
    )


def _alive(row: Row) -> bool:
    # Dead networks have one weight or none and would stretch the axes over decades.
    return float(row["accuracy"]) > CHANCE


# Figures 6, 7, 13, 15 to 20 and 24 of the weight-factorization paper: epoch by epoch.

QUANTITIES = {
    "compression": ("compression", True),
    "accuracy": ("test accuracy %", False),
    "norm": ("norm of the collapsed weights", False),
    "misalignment": ("misalignment of the factors", True),
    "loss": ("training loss", True),
}
"""What is drawn over the epochs, and whether on a logarithm."""

SCHEDULES = {"0": "constant rate", "1": "cosine", "steps": "rate in steps"}
"""`anneal` in words."""

LAYERS = ("weight", "bias")
"""What a layer of the fully connected net has, in this order."""


@FIGURES.register("weight-factorization-dynamics")
def dynamics(rows: Sequence[Row]) -> Iterator[Panel]:
    """By depth, by λ, and by start and rate; then layer by layer; then the parts of the loss."""
    for name, (words, own) in _comparisons(rows).items():
        for column, (label, log) in QUANTITIES.items():
            lines = lines_of(
                (title, (point(row, "epoch", column) for row in one)) for title, one in own.items()
            )
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
        yield from _layers(strength, run)
        yield _losses(strength, run)


def _comparisons(rows: Sequence[Row]) -> dict[str, tuple[str, dict[str, list[Row]]]]:
    """The trainings that differ from the usual one in a single setting."""
    usual = rows[0]
    found = {}
    # What a comparison is called, where it differs from the usual training, and in what.
    sets: dict[str, tuple[str, dict[str, str], tuple[str, ...], str]] = {
        "depth": ("depths", {}, ("depth",), "depth {}"),
        "strength": ("strengths", {}, ("strength",), "λ {}"),
        "start": ("starts and rates", {}, ("init", "anneal"), "init {}, {}"),
        "schedule": ("rates at depth 4", {"depth": "4"}, ("anneal",), "{}"),
    }
    for name, (words, where, columns, title) in sets.items():
        shown = {"depth", "strength", "init", "rate", "anneal"} - set(columns)
        fixed = {column: where.get(column, usual[column]) for column in shown}
        own = [row for row in rows if all(row[column] == x for column, x in fixed.items())]
        # No depth and no λ is 0 or 1, so only `anneal` is put into words.
        groups = {
            title.format(*(SCHEDULES.get(part, part) for part in key)): g
            for key, g in groups_by(own, *columns).items()
        }
        # A single training is not a comparison; it is drawn once, with the depths.
        if len(groups) > 1 or name == "depth":
            found[name] = (words, groups)
    return found


def _by_strength(rows: Sequence[Row]) -> dict[str, list[Row]]:
    _, groups = _comparisons(rows).get("strength", ("", {}))
    usual = rows[0]["strength"]
    found = {own[0]["strength"]: own for own in groups.values()}
    return found or {usual: [row for row in rows if row["job"] == rows[0]["job"]]}


def _layers(strength: str, rows: Sequence[Row]) -> Iterator[Panel]:
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
        lines = lines_of(
            (title, zip(epochs, layer, strict=True)) for title, layer in _weights_by_layer(values)
        )
        yield panel(
            f"layers-{column}-{strength}",
            f"{figure}: layer by layer, λ {strength}",
            "",
            lines,
            x="epoch",
            y=label,
            log_y=log and all(v > 0 for one in lines for v in (d.y for d in one.dots)),
            marks=False,
        )


def _losses(strength: str, rows: Sequence[Row]) -> Panel:
    """Figure 20: the loss of the data, and the penalty parted by Lemma 1."""
    parts = {
        "loss": "loss",
        "minimal_penalty": "penalty of the collapsed weights",
        "excess_penalty": "excess of the penalty (misalignment)",
    }
    lines = lines_of(
        (title, (point(row, "epoch", column) for row in rows)) for column, title in parts.items()
    )
    return panel(
        f"losses-{strength}",
        f"Figure 20: parts of the loss, λ {strength}",
        "",
        [positive(one) for one in lines],
        x="epoch",
        y="part of the loss",
        log_y=True,
        marks=False,
    )


def _per_layer(rows: Sequence[Row], column: str) -> list[list[float]]:
    """A list for each parameter with a number for each epoch."""
    epochs = [[float(value) for value in row[column].split()] for row in rows]
    return [list(values) for values in zip(*epochs, strict=True)]


def _weights_by_layer(
    values: Sequence[Sequence[float]],
) -> Iterator[tuple[str, Sequence[float]]]:
    """Weights only, as in the paper."""
    for place, found in enumerate(values):
        layer, part = divmod(place, len(LAYERS))
        if LAYERS[part] == "weight":
            yield f"layer {layer + 1}", found


# Figures 8 and 9 of the weight-factorization paper: accuracy against compression.

DEPTHS = ("dwf-depth-2", "dwf-depth-3", "dwf-depth-4")
COMPARED = ("gmp", "snip", "synflow", "random")
BELOW = 30.0
"""Points below the dense network where the figures of factorized networks end."""


@FIGURES.register("weight-factorization")
def frontier(rows: Sequence[Row]) -> Iterator[Panel]:
    """For each network and data set: the paper's recipe, the recipe as printed, ours, and the
    methods it is compared with.
    """
    for (model, data), own in groups_by(rows, "model", "data").items():
        lines = _lines_by_method(own)
        dense = [float(row["accuracy"]) for row in own if row["method"] == "dense"]
        how = {"level": ("dense", fmean(dense)) if dense else None}
        near = {**how, "floor": fmean(dense) - BELOW if dense else None}
        place, prefix = f"{model} on {data}", f"{model}-{data}"
        by_depth = {
            "two-deviations": (START, "factors cut at two deviations"),
            "the-text": (TEXT, "by the paper's text"),
            "variance-restored": (
                RESTORED,
                "with the variance of the start restored",
            ),
            "ours": (OURS, "by our recipe (moving λ, tuned)"),
            "ours-as-printed": (
                OURS_AS_PRINTED,
                "by our recipe from the printed start",
            ),
        }
        for name, (recipe, words) in by_depth.items():
            shown = [lines[m, recipe] for m in DEPTHS if (m, recipe) in lines]
            yield _panel(
                f"{prefix}-{name}",
                f"Figure 8: {place}, {words}",
                _with_print(model, data, shown, DEPTHS),
                **near,
            )
        depth_3 = [found for (m, _), found in lines.items() if m == "dwf-depth-3"]
        # All have the same depth, and so the same colour.
        recipes = [replace(found, colour=place) for place, found in enumerate(depth_3)]
        yield _panel(
            f"{prefix}-recipes",
            f"Depth 3 by every recipe: {place}",
            [*recipes, *_print(model, data, ("dwf-depth-3",), first=len(recipes))],
            **near,
        )
        others = [found for (m, _), found in lines.items() if m in COMPARED]
        yield _panel(
            f"{prefix}-compared",
            f"Figure 8: {place}, the methods compared with",
            _with_print(model, data, others, COMPARED),
            **how,
        )


def _panel(name: str, head: str, lines: Sequence[ChartLine], **how: Any) -> Panel:
    text = "Medians over seeds, whiskers from the least to the most. Dotted: the paper, table 2."
    return panel(name, head, text, lines, **FRONTIER, **how)


def _lines_by_method(rows: Sequence[Row]) -> dict[tuple[str, str], ChartLine]:
    """Lines by method and recipe, with a mark for each strength or compression asked for."""
    found = {}
    for (_, _, method, recipe), own in by_recipe(rows).items():
        if method == "dense":
            continue
        columns = columns_of(recipe)
        asked = groups_by(own, "strength", "prune_to").values()
        names = DEPTHS if method in DEPTHS else COMPARED
        found[method, recipe] = over_seeds(
            f"{method} ({recipe})" if recipe else method,
            ([_point(row, columns) for row in group] for group in asked),
            colour=names.index(method) if method in names else len(names),
        )
    return found


def _point(row: Row, columns: tuple[str, str]) -> tuple[float, float]:
    x, y = point(row, *columns)
    # A network without a gap has the compression that it was pruned to.
    return (x if x == x else float(row["compression"])), y


def _with_print(
    model: str, data: str, ours: Sequence[ChartLine], names: Sequence[str]
) -> list[ChartLine]:
    """Our lines, and the printed ones in the same colours if we have any of these methods."""
    return [*ours, *_print(model, data, names)] if ours else []


def _print(model: str, data: str, names: Sequence[str], first: int = 0) -> list[ChartLine]:
    found = []
    for place, name in enumerate(names):
        points = [
            (each.compression, each.accuracy)
            for each in shipped_figures()
            if (each.model, each.data, each.method) == (model, data, name)
        ]
        found.append(line(f"{name}, printed", points, colour=first + place, printed=True))
    return found


# Figures 1 and 21 of the weight-factorization paper: cut afterwards; and what goes beyond it.


@FIGURES.register("weight-factorization-l1")
def plain_l1(rows: Sequence[Row]) -> Iterator[Panel]:
    """Figure 1: as trained by λ, and then cut by magnitude, read at the compressions cut to."""
    trained, cut = [], []
    for place, (penalty, title) in enumerate(PENALTIES.items()):
        own = [row for row in rows if row["penalty"] == penalty]
        by_strength = groups_by([row for row in own if row["cut"] == "0"], "strength").values()
        found = ([point(row, "compression", "accuracy") for row in group] for group in by_strength)
        trained.append(over_seeds(title, found, colour=place))
        best = [envelope(group) for group in groups_by(own, "seed").values()]
        found = ([(c, a) for curve in best if (a := at(curve, c)) is not None] for c in CUTS)
        cut.append(over_seeds(title, found, colour=place))
    said = "Medians over seeds, whiskers from the least to the most."
    for name, words, lines, text in (
        ("as-trained", "as trained", trained, "A mark for each λ."),
        ("cut", "then cut by magnitude", cut, "The best accuracy at this compression or larger."),
    ):
        yield panel(name, f"Figure 1: {words}", f"{text} {said}", lines, floor=50.0, **FRONTIER)


@FIGURES.register("weight-factorization-posthoc")
def posthoc(rows: Sequence[Row]) -> Iterator[Panel]:
    """Figure 21: each network cut further and trained further."""
    text = "Each line begins at the network as factorization left it."
    for (rate,), own in groups_by(rows, "tune_rate").items():
        lines = lines_of(
            (f"λ {strength}, {words}", [point(row, "compression", column) for row in one])
            for (strength,), one in groups_by(own, "strength").items()
            for column, words in (("accuracy", "cut"), ("tuned_accuracy", "tuned"))
        )
        yield panel(f"rate-{rate}", f"Figure 21: tuned at rate {rate}", text, lines, **FRONTIER)


@FIGURES.register("weight-factorization-beyond")
def beyond(rows: Sequence[Row]) -> Iterator[Panel]:
    """Before and after the exchange of weights, beside the best depth of the paper."""
    # Rows in stages begin at the result of the one before, which is a mark already.
    slow = [row for row in rows if row["job"].startswith("slowly")]
    single = [row for row in rows if row["after"] == "0" and row not in slow]
    staged = [row for row in rows if row["after"] != "0" and row not in slow]
    before = [point(row, "start_compression", "start_accuracy") for row in single]
    after, stages, slowly = (
        [point(row, "compression", "accuracy") for row in part] for part in (single, staged, slow)
    )
    lines = [
        line("before", before, colour=0, joined=False),
        line("after", after, colour=1, joined=False),
        line("after, in stages", stages, colour=3, joined=False),
        line("after, slowly", slowly, colour=4, joined=False),
        *_print("lenet-300-100", "fashion-mnist", ("dwf-depth-3",), first=2),
    ]
    text = (
        "A usual search from a trained network is two marks, before and after weights were"
        " exchanged; stages and slow searches are one, after."
    )
    yield panel("beyond", "Beyond the paper", text, lines, **FRONTIER)


# Figures 5a, 10 and 13 of the weight-factorization paper: layer by layer.


@FIGURES.register("weight-factorization-layers")
def layers(rows: Sequence[Row]) -> Iterator[Panel]:
    """For each network: what is left of its layers, norms against λ, and dead weights."""
    for (model, data), own in groups_by(rows, "model", "data").items():
        place, prefix = f"{model} on {data}", f"{model}-{data}"
        usual = [row for row in own if row["strength"] != "0"]
        watched = [row for row in own if row["strength"] == "0"]
        yield from _shares(place, prefix, usual)
        yield from _norms(place, prefix, [r for r in usual if r["method"] == "dwf"])
        yield from _dead(place, prefix, watched)


def _shares(place: str, prefix: str, rows: Sequence[Row]) -> Iterator[Panel]:
    """Figure 10: a panel for each method, a line for each layer."""
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(method_of(row), []).append(row)
    for method, own in by_method.items():
        lines = lines_of(
            (layer, map(_share, kept)) for (layer,), kept in groups_by(own, "layer").items()
        )
        yield panel(
            f"{prefix}-{method}",
            f"Figure 10: {place}",
            "What is left of each layer. A layer without a mark is empty: it has collapsed.",
            [positive(one) for one in lines],
            x=f"compression, {method}",
            y="kept parameters of the layer %",
            log_x=True,
            log_y=True,
        )


def _share(row: Row) -> tuple[float, float]:
    return float(row["compression"]), 100 * float(row["kept"]) / float(row["total"])


def _norms(place: str, prefix: str, rows: Sequence[Row]) -> Iterator[Panel]:
    """Figure 13: λ against compression and norm, and these against each other."""
    # The rows of all layers repeat the network's own figures: once is enough.
    networks = [own[0] for own in groups_by(rows, "job").values()]
    pairs = {
        "compression-strength": (
            "strength",
            "compression",
            "strength λ",
            COMPRESSION,
        ),
        "norm-strength": ("strength", "norm", "strength λ", "norm of the weights"),
        "norm-compression": (
            "compression",
            "norm",
            COMPRESSION,
            "norm of the weights",
        ),
    }
    for name, (across, up, x, y) in pairs.items():
        lines = lines_of(
            (f"depth {depth}", (point(row, across, up) for row in own))
            for (depth,), own in sorted(groups_by(networks, "depth").items())
        )
        yield panel(
            f"{prefix}-{name}",
            f"Figure 13: {place}",
            "One mark for each training.",
            [positive(one) for one in lines],
            x=x,
            y=y,
            log_x=True,
            log_y=True,
        )


def _dead(place: str, prefix: str, rows: Sequence[Row]) -> Iterator[Panel]:
    """Figure 5a: accuracy and the share of weights that have not moved, without any decay."""
    runs = groups_by(rows, "init", "match_variance", "depth").items()
    for name, y in (("accuracy", "test accuracy %"), ("still", "unmoved weights %")):
        lines = lines_of(
            (
                f"{init}{', variance restored' if restored == 'True' else ''}",
                [_at(name, epoch) for epoch in groups_by(own, "epoch").values()],
            )
            for (init, restored, _), own in runs
        )
        yield panel(
            f"{prefix}-deep-{name}",
            f"Figure 5a: {place}, λ = 0",
            "Depth 10. Without the truncation of the factors many weights never move.",
            lines,
            x="epoch",
            y=y,
            log_y=False,
        )


def _at(name: str, layers: Sequence[Row]) -> tuple[float, float]:
    """One epoch: the accuracy of the network, or the share of its weights that have not moved."""
    if name == "accuracy":
        return point(layers[0], "epoch", "accuracy")
    still, total = (sum(float(row[c]) for row in layers) for c in ("still", "total"))
    return float(layers[0]["epoch"]), 100 * still / total


# Figures 2 and 3 and tables 1 and 2 of the paths paper.

ORDER = ("none", *METHODS)


@FIGURES.register("path-pruning")
def path_pruning(rows: Sequence[Row]) -> Iterator[Panel]:
    """For each network: overlaps, curves of training, accuracies, and |w| against its cost."""
    for (network,), own in groups_by(rows, "network").items():
        by_kind = {key[0]: found for key, found in groups_by(own, "kind").items()}
        # Whole: one architecture may be there with several trainings.
        name = network.replace(" ", "-")
        yield _overlaps(network, name, by_kind.get("overlap", []))
        yield from _curves(network, name, by_kind.get("curve", []))
        yield _accuracies(network, name, by_kind.get("accuracy", []))
        yield from _scatters(network, name, by_kind.get("scatter", []))


def _overlaps(network: str, name: str, rows: Sequence[Row]) -> Panel:
    lines = []
    for place, method in enumerate(list(METHODS)[1:]):
        plain = [r for r in rows if (r["method"], r["rescaled"]) == (method, "False")]
        moved = [r for r in rows if (r["method"], r["rescaled"]) == (method, "True")]
        printed = [
            (float(row["pruning_percent"]), float(row["mask_overlap_percent"]))
            for row in printed_rows("path_pruning_table1.csv")
            if row["pair"] == f"magnitude-vs-{method}"
        ]
        lines += [
            line(method, (point(r, "percent", "y") for r in plain), colour=place),
            line(
                f"{method}, rescaled",
                (point(r, "percent", "y") for r in moved),
                colour=place + 2,
            ),
            line(f"{method}, printed", printed, colour=place, printed=True),
        ]
    # The printed figures alone would say nothing about this network.
    return panel(
        f"{name}-overlaps",
        f"Table 1: {network}",
        "How much the masks of path costs agree with those of magnitude.",
        lines if rows else [],
        x="pruned %",
        y="overlap of kept and cut weights %",
    )


def _curves(network: str, name: str, rows: Sequence[Row]) -> Iterator[Panel]:
    """Figure 2: a panel for each pruned share."""
    dense = [row for row in rows if row["method"] == "none"]
    pruned = [row for row in rows if row["method"] != "none"]
    for (percent,), own in groups_by(pruned, "percent").items():
        groups = groups_by([*dense, *own], "method", "rescaled")
        lines = [_trace(method, moved, found, "epoch") for (method, moved), found in groups.items()]
        yield panel(
            f"{name}-curves-{percent}",
            f"Figure 2: {network}, {percent} % pruned",
            "Training after pruning and rewinding. After a rescaling the masks of path"
            " costs are the same, and so are their curves.",
            lines,
            x="epoch",
            y="test accuracy %",
            marks=False,
        )


def _distinct(rows: Sequence[Row]) -> list[Row]:
    """Drop curves after a rescaling that equal those before it: they would hide each other."""
    plain = {_place(r): r["y"] for r in rows if r["rescaled"] == "False"}
    moved = groups_by([r for r in rows if r["rescaled"] == "True"], "method")
    same = {
        method
        for (method,), own in moved.items()
        if all(plain.get(_place(row)) == row["y"] for row in own)
    }
    return [r for r in rows if r["rescaled"] == "False" or r["method"] not in same]


def _place(row: Row) -> tuple[str, str, str]:
    return row["method"], row["percent"], row["epoch"]


def _trace(method: str, moved: str, rows: Sequence[Row], x: str) -> ChartLine:
    name = "dense" if method == "none" else method
    name += ", rescaled" if moved == "True" else ""
    # The rescaled lines get later colours, so that they differ from the others.
    colour = ORDER.index(method) + (len(METHODS) if moved == "True" else 0)
    return line(name, (point(row, x, "y") for row in rows), colour=colour)


def _accuracies(network: str, name: str, rows: Sequence[Row]) -> Panel:
    pruned = [row for row in rows if row["method"] != "none"]
    distinct = groups_by(_distinct(pruned), "method", "rescaled")
    lines = [_trace(method, moved, own, "percent") for (method, moved), own in distinct.items()]
    dense = [float(row["y"]) for row in rows if row["method"] == "none"]
    return panel(
        f"{name}-accuracies",
        f"Table 2: {network}",
        "The epoch with the best accuracy on images held out. A method without a line"
        " of its own for the rescaled network has the same masks there.",
        lines,
        x="pruned %",
        y="test accuracy %",
        level=("dense", dense[0]) if dense else None,
    )


def _scatters(network: str, name: str, rows: Sequence[Row]) -> Iterator[Panel]:
    """Figure 3: some weights, before and after the rescaling."""
    for (moved,), own in groups_by(rows, "rescaled").items():
        words = "after a rescaling" if moved == "True" else "as trained"
        # Zero has no place on a logarithmic axis.
        points = [p for p in (point(r, "x", "y") for r in own) if min(p) > 0]
        yield panel(
            f"{name}-scatter{'-rescaled' if moved == 'True' else ''}",
            f"Figure 3: {network}",
            "A mark for each of some weights drawn at random.",
            [line("weights", points, joined=False)],
            x=f"magnitude |w|, {words}",
            y="path cost",
            log_x=True,
            log_y=True,
            marks=False,
        )


# Figures 1 and 2 of the probabilistic paper: how the weights of networks are distributed.


@FIGURES.register("probabilistic-moments")
def trained_norms(rows: Sequence[Row]) -> Iterator[Panel]:
    """Figure 1: each layer of the first seed."""
    first = [row for row in rows if row["seed"] == rows[0]["seed"]]
    for row in first:
        words = f"{row['data']}, seed {row['seed']}"
        yield _histogram(f"layer-{row['layer']}", "Figure 1: weights by layer", words, row)


@FIGURES.register("probabilistic-vgg")
def vgg(rows: Sequence[Row]) -> Iterator[Panel]:
    """Figure 2: each layer of each network."""
    for place, ((network,), own) in enumerate(groups_by(rows, "network").items()):
        for row in own:
            name = f"{place}-layer-{row['layer']}"
            yield _histogram(name, f"Figure 2: weights of {network}", network, row)


def _histogram(name: str, head: str, words: str, row: Row) -> Panel:
    """The histogram, and the normal law of the same moments."""
    return panel(
        name,
        head,
        f"{words}. Dotted: the normal law of the same mean and variance.",
        _density_lines(row),
        x=f"weight of layer {row['layer']}",
        y="density of the weights",
        log_y=False,
        marks=False,
    )


def _density_lines(row: Row) -> list[ChartLine]:
    counts = [int(count) for count in row["counts"].split()]
    low, high = float(row["low"]), float(row["high"])
    wide = (high - low) / len(counts)
    middles = [low + (place + 0.5) * wide for place in range(len(counts))]
    shares = [count / sum(counts) / wide for count in counts]
    mean, variance = float(row["mean"]), float(row["variance"])
    normal = [
        math.exp(-((x - mean) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)
        for x in middles
    ]
    return [
        line("weights", zip(middles, shares, strict=True)),
        line("normal law", zip(middles, normal, strict=True), colour=1, printed=True),
    ]


# Tables 1 to 4 and figures 1a, 1b and 2 of the sketching paper.

SCORES = ("synflow", "snip", "grasp")
"""What is drawn in a panel of its own; all else stands together."""


@FIGURES.register("sketching-tables")
def accuracies(rows: Sequence[Row]) -> Iterator[Panel]:
    """For each network and score: accuracy against density, top-k and drawn masks."""
    for (data, model), own in groups_by(rows, "data", "model").items():
        for score in (*SCORES, ""):
            shown = [row for row in own if _score(row["method"]) == score]
            lines = [
                over_seeds(
                    method,
                    (
                        [_percent(row) for row in group]
                        for group in groups_by(found, "density").values()
                    ),
                    colour=place,
                )
                for place, ((method,), found) in enumerate(groups_by(shown, "method").items())
            ]
            yield panel(
                f"{model}-{data}-{score or 'others'}",
                f"{model} on {data}: {score or 'the other methods'}",
                "Medians over seeds, whiskers from the least to the most.",
                lines,
                x="density %",
                y="test accuracy %",
                log_x=True,
                log_y=False,
            )


def _score(method: str) -> str:
    return next((score for score in SCORES if method.startswith(score)), "")


def _percent(row: Row) -> tuple[float, float]:
    return 100 * float(row["density"]), float(row["accuracy"])


@FIGURES.register("sketching-pictures")
def pictures(rows: Sequence[Row]) -> Iterator[Panel]:
    """What is kept, by magnitude and by score; the norm of what IMP keeps."""
    histograms = {
        "1a": ("Figure 1a: magnitudes at the start of what is kept", "magnitude |w|"),
        "1b": ("Figure 1b: scores of what is kept", "log₁₀ of the SynFlow score"),
    }
    for figure, (head, x) in histograms.items():
        own = [row for row in rows if row["figure"] == figure]
        yield panel(
            f"figure-{figure}",
            head,
            "The share of each group that falls into a bin.",
            _series(own),
            x=x,
            y="share of the group",
            log_y=False,
            marks=False,
        )
    own = [row for row in rows if row["figure"] == "2"]
    spread = {row["x"]: float(row["y"]) for row in own if row["series"] == "random_std"}
    named = [row for row in own if row["series"] in ("imp", "random")]
    whole = [float(row["y"]) for row in own if row["series"] == "whole"]
    yield panel(
        "figure-2",
        "Figure 2: the norm of the initial weights under a mask",
        "Random masks: mean of ten draws, whiskers one standard deviation.",
        [_with_spread(found, spread) for found in _series(named)],
        x="sparsity",
        y="norm of mask × weights",
        log_y=False,
        level=("without a mask", whole[0]) if whole else None,
    )


def _series(rows: Sequence[Row]) -> list[ChartLine]:
    groups = groups_by(rows, "series").items()
    return lines_of((name, (point(row, "x", "y") for row in own)) for (name,), own in groups)


def _with_spread(found: ChartLine, spread: dict[str, float]) -> ChartLine:
    if found.name != "random":
        return found
    wide = {float(x): half for x, half in spread.items()}
    dots = (replace(d, low=d.y - wide[d.x], high=d.y + wide[d.x]) for d in found.dots)
    return replace(found, dots=tuple(dots))


def figures_of(name: str, rows: Sequence[Row]) -> list[Panel]:
    """The figures of an experiment, from as many of its rows as there are.

    An experiment whose results are a table of numbers has none.
    """
    if name not in FIGURES or not rows:
        return []
    # A figure without a mark is an empty frame, as long as most rows are missing.
    return [panel for panel in FIGURES[name](rows) if panel.drawing is not None]


# Figures of an experiment as files, and as one page that works offline.


def write_figures(folder: Path, name: str, panels: Sequence[Panel]) -> list[Path]:
    """Every figure as SVG, named after the experiment; returns the files."""
    return [
        write_text(folder / f"{name}-{panel.name}.svg", panel.drawing.file())
        for panel in panels
        if panel.drawing is not None
    ]


def links(page: Path, files: Sequence[Path], panels: Sequence[Panel]) -> str:
    """The figures as Markdown, for a page that lies at `page`."""
    # Without files the page shows numbers only.
    if not files:
        return ""
    lines = ["", "## Figures", ""]
    for path, panel in zip(files, panels, strict=True):
        # Forward slashes on every system, because the page is also read on others.
        place = _relative(path, page.parent).as_posix()
        _, x, y, *_ = panel.table.columns
        lines += [f"![{panel.head}: {y} against {x}]({place})", ""]
    return "\n".join(lines)


def write_html(
    out: Path,
    experiment: Experiment,
    rows: Sequence[Row],
    panels: Sequence[Panel],
    *,
    scale: str,
) -> Path:
    """One self-contained page: figures with hover and legend, then every number and the printed
    one.
    """
    name = experiment.name
    lead = f"python -m experiments {name} --scale {scale} --out {name}.csv"
    said = [f"<p><code>{lead}</code></p>"]
    said += [f"<p>{escape(experiment.settings.get(scale, ''))}</p>"]  # type: ignore[call-overload]
    numbers = Table(
        columns=COLUMNS,
        cells=tuple(cells(each) for each in experiment.compare(rows)),
    )
    comparison = Panel(name="beside-print", head="Beside the paper", table=numbers)
    body = "".join(said) + section("", [*panels, comparison])
    return write_text(out, document(f"{experiment.paper}: {experiment.what}", body))


def _relative(path: Path, folder: Path) -> Path:
    # Not `Path.relative_to`, which refuses a folder next to the page's own.
    return Path(os.path.relpath(path.resolve(), folder.resolve()))
