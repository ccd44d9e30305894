"""Figures 5a, 10 and 13 of the weight-factorization paper: layer by layer."""

from collections.abc import Iterator, Sequence

from secateurs.report.panel import Panel
from secateurs.report.reproduced.figure import (
    COMPRESSION,
    FIGURES,
    groups_by,
    line,
    panel,
    point,
    positive,
)
from secateurs.study.reproduce.experiment import Row
from secateurs.study.reproduce.factorization.recipes import method_of


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
        lines = [
            line(layer, map(_share, kept), colour=colour)
            for colour, ((layer,), kept) in enumerate(groups_by(own, "layer").items())
        ]
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
    # The network's own figures stand in the rows of all its layers: once is enough.
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
        lines = [
            line(
                f"depth {depth}",
                (point(row, across, up) for row in own),
                colour=colour,
            )
            for colour, ((depth,), own) in enumerate(
                sorted(groups_by(networks, "depth").items())
            )
        ]
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
    """Figure 5a: accuracy and weights that have not moved, without any decay."""
    runs = groups_by(rows, "init", "match_variance", "depth").items()
    for name, y in (("accuracy", "test accuracy %"), ("still", "unmoved weights %")):
        lines = [
            line(
                f"{init}{', variance restored' if restored == 'True' else ''}",
                [_at(name, epoch) for epoch in groups_by(own, "epoch").values()],
                colour=colour,
            )
            for colour, ((init, restored, _), own) in enumerate(runs)
        ]
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
