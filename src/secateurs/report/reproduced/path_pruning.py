"""Figures 2 and 3 and tables 1 and 2 of the paths paper."""

from collections.abc import Iterator, Sequence

from secateurs.report.panel import Panel
from secateurs.report.reproduced.figure import FIGURES, groups_by, line, panel, point
from secateurs.report.series import Line
from secateurs.study.reproduce.experiment import Row
from secateurs.study.reproduce.path_pruning.settings import METHODS
from secateurs.study.reproduce.printed import printed_rows

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
            line(f"{method}, print", printed, colour=place, printed=True),
        ]
    # Print's figures alone would say nothing about this network.
    return panel(
        f"{name}-overlaps",
        f"Table 1: {network}",
        "How much the masks of path costs agree with those of magnitude.",
        lines if rows else [],
        x="pruned %",
        y="overlap of kept and cut weights %",
    )


def _curves(network: str, name: str, rows: Sequence[Row]) -> Iterator[Panel]:
    """Figure 2: a panel for each share that was pruned."""
    dense = [row for row in rows if row["method"] == "none"]
    pruned = [row for row in rows if row["method"] != "none"]
    for (percent,), own in groups_by(pruned, "percent").items():
        groups = groups_by([*dense, *own], "method", "rescaled")
        lines = [
            _trace(method, moved, found) for (method, moved), found in groups.items()
        ]
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
    """Without the curves after a rescaling that are those before it: they would hide each other."""
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


def _trace(method: str, moved: str, rows: Sequence[Row]) -> Line:
    name = "dense" if method == "none" else method
    name += ", rescaled" if moved == "True" else ""
    # The rescaled lines come after the others in colour, so that both can be told apart.
    colour = ORDER.index(method) + (len(METHODS) if moved == "True" else 0)
    return line(name, (point(row, "epoch", "y") for row in rows), colour=colour)


def _accuracies(network: str, name: str, rows: Sequence[Row]) -> Panel:
    pruned = [row for row in rows if row["method"] != "none"]
    lines = []
    distinct = groups_by(_distinct(pruned), "method", "rescaled")
    for (method, moved), own in distinct.items():
        named = _trace(method, moved, [])
        points = [point(row, "percent", "y") for row in own]
        lines.append(line(named.name, points, colour=named.colour))
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
        # Zero has no place on a logarithm.
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
