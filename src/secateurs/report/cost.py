"""What each method costs, with all the runs that it builds on."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from secateurs.report.table import Table
from secateurs.study.keeping.row import Row
from secateurs.study.watching.words import clock

STAGES = {
    "begin": "begin",
    "cut": "score and cut",
    "train": "train",
    "certify": "certify",
    "measured": "measure",
    "measure": "measure",
}


def cost(rows: Sequence[Row]) -> Table:
    """What each method costs: the median run stage by stage, and with all it builds on."""
    known = {row.key: row for row in rows}
    by_label: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        # Hidden runs have no line of their own; whole_cost
        # adds them to the runs that need them.
        if row.ended and row.seconds and not row.hidden:
            by_label[row.label].append(row)
    names = list(dict.fromkeys(STAGES[s] for s in STAGES if _any(rows, s)))
    cells = [
        (
            label,
            str(len(group)),
            *(_stage(group, name) for name in names),
            _seconds(median(row.seconds for row in group)),
            _seconds(median(whole_cost(row, known) for row in group)),
            clock(sum(row.seconds for row in group)),
        )
        for label, group in by_label.items()
    ]
    heads = ("one run, s", "with the runs it needs, s", "all runs")
    return Table(columns=("method", "runs", *names, *heads), cells=tuple(cells))


def whole_cost(row: Row, known: Mapping[str, Row]) -> float:
    """Seconds of a run and of the runs before it: pruning a trained network includes its
    training.
    """
    # Each run counts once, even where parent and rewind name the same one.
    seconds, seen, left = 0.0, set[str](), [row.key]
    while left:
        key = left.pop()
        if key in known and key not in seen:
            seen.add(key)
            seconds += known[key].seconds
            left += [known[key].settings.get(n) or "" for n in ("parent", "rewind")]
    return seconds


def _any(rows: Iterable[Row], stage: str) -> bool:
    # Less than that would print as 0.00 in the whole column.
    return any(row.timings.get(stage, 0.0) >= 0.005 for row in rows)


def _stage(group: Sequence[Row], name: str) -> str:
    stages = [stage for stage in STAGES if STAGES[stage] == name]
    return _seconds(median(sum(r.timings.get(s, 0.0) for s in stages) for r in group))


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"
