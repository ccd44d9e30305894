"""The accuracies beside print, and what drawing instead of cutting changes."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from secateurs.study.reproduce.experiment import (
    Beside,
    Row,
)
from secateurs.study.reproduce.sketching.tables import published

PAIRS = {
    "synflow": ("synflow+random-mask", "synflow"),
    "synflow-chi": ("synflow-chi+random-mask", "synflow-chi"),
    "snip, data": ("snip-supervised+random-mask", "snip-supervised"),
    "snip, noise": ("snip-unsupervised+random-mask", "snip-unsupervised"),
    "snip, sparse noise": (
        "snip-unsupervised+sparse-data+random-mask",
        "snip-unsupervised+sparse-data",
    ),
    "snip, sparse noise against data": (
        "snip-unsupervised+sparse-data+random-mask",
        "snip-supervised",
    ),
    "grasp, data": ("grasp-supervised+random-mask", "grasp-supervised"),
    "grasp, noise": ("grasp-unsupervised+random-mask", "grasp-unsupervised"),
}
"""Drawn masks and the top-k they are compared with."""


def beside(rows: Sequence[Row]) -> list[Beside]:
    """Accuracies, and what drawing instead of cutting changes, in points; print's change beside
    it.
    """
    cells = _cells(rows)
    found = [_cell(key, values) for key, values in cells.items()]
    return found + [
        difference
        for difference in _differences(rows, cells)
        if difference is not None
    ]


Key = tuple[str, str, float, str]


def _cells(rows: Sequence[Row]) -> dict[Key, dict[str, float]]:
    """Accuracy by seed, for every data set, model, density and method."""
    cells: dict[Key, dict[str, float]] = {}
    for row in rows:
        key = (row["data"], row["model"], float(row["density"]), row["method"])
        cells.setdefault(key, {})[row["seed"]] = float(row["accuracy"])
    return cells


def _cell(key: Key, values: dict[str, float]) -> Beside:
    data, model, density, method = key
    printed = published().get(key)
    what = f"{model} on {data}, {density:.0%}, {method}: accuracy %"
    return Beside(
        what=what,
        ours=tuple(values.values()),
        printed=None if printed is None else printed[0],
    )


def _differences(
    rows: Sequence[Row], cells: dict[Key, dict[str, float]]
) -> Iterator[Beside | None]:
    places = dict.fromkeys(
        (row["data"], row["model"], float(row["density"])) for row in rows
    )
    for data, model, density in places:
        for name, (drawn, cut) in PAIRS.items():
            one, other = (
                cells.get((data, model, density, method), {})
                for method in (drawn, cut)
            )
            points = tuple(
                # Seed by seed, since both began with the same weights.
                one[seed] - other[seed]
                for seed in one.keys() & other.keys()
            )
            what = (
                f"{model} on {data}, {density:.0%}, {name}: drawn less top-k, points"
            )
            change, networks = _printed_change(density, drawn, cut)
            note = f"print: mean of {networks} networks" if networks else ""
            yield (
                Beside(what=what, ours=points, printed=change, note=note)
                if points
                else None
            )


def _printed_change(density: float, drawn: str, cut: str) -> tuple[float | None, int]:
    """The mean over print's own data sets and models at this density, and how many there are."""
    figures = published()
    printed = [
        (key, value[0])
        for key, value in figures.items()
        if key[2:] == (density, drawn)
    ]
    bases = [(value, figures.get((*key[:3], cut))) for key, value in printed]
    # Only where print has both, or the mean would be over different networks.
    changes = [value - base[0] for value, base in bases if base is not None]
    return (round(fmean(changes), 2) if changes else None), len(changes)
