"""A study's results as one Markdown text: accuracies and costs of all methods side by side, the
best and the worst at each compression, and what was chosen among the candidates.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from secateurs.base.cells import markdown_cell
from secateurs_lab.report.series import number
from secateurs_lab.report.tables import Table
from secateurs_lab.study.database import Row
from secateurs_lab.study.export import flat
from secateurs_lab.study.watching import clock

Groups = dict[tuple[str, float], list[Row]]
"""Rows by label and the compression asked for."""


def summary(rows: Sequence[Row], *, name: str) -> str:
    """The text for these rows, hidden ones included.

    >>> print(summary([], name="empty"))
    # empty
    <BLANKLINE>
    Nothing to show yet: no run has ended.
    <BLANKLINE>
    """
    parts = [f"# {markdown_cell(name)}"]
    known = {row.key: row for row in rows}
    ended = [row for row in rows if row.ended and not row.hidden]
    if not ended:
        parts.append("Nothing to show yet: no run has ended.")
    for model, data in dict.fromkeys((row.model, _whole(row)) for row in ended):
        mine = [row for row in ended if (row.model, _whole(row)) == (model, data)]
        compared = [row for row in mine if _held_out(row) is None]
        parts.append(f"## {markdown_cell(f'{model} on {data}')}")
        parts += _compared(compared, known)
        parts += _tuned([row for row in mine if _held_out(row) is not None], compared, known)
    open_ = sum(not row.ended for row in rows)
    if open_ and ended:
        parts.append(f"{open_} runs have not ended.")
    parts += _lost(ended)
    parts += _made(ended)
    return "\n\n".join(parts) + "\n"


def _held_out(row: Row) -> Any:
    return row.settings.get("data", {}).get("held_out")


def _whole(row: Row) -> str:
    """The data set, whether or not some of it is held out."""
    return str(row.settings.get("data", {}).get("name", row.data))


# Accuracies, the best and the worst, what training cost.


def _compared(rows: Sequence[Row], known: Mapping[str, Row]) -> Iterator[str]:
    groups: Groups = defaultdict(list)
    for row in rows:
        if row.asked is not None:
            groups[row.label, row.asked].append(row)
    asked = sorted({compression for _, compression in groups})
    if not asked:
        return
    seeds = sorted({row.seed for rows in groups.values() for row in rows})
    kept = max(row.total or 0 for row in rows)
    dense = [row for row in rows if row.kind == "dense" and row.settings.get("parent") is None]
    longest = max((row.metrics.get("cost.steps", 0.0) for row in dense), default=0.0)
    level = [100 * r.accuracy for r in dense if r.accuracy is not None and _steps(r) == longest]
    text = (
        f"{kept:,} weights. Medians of the test accuracy in %, and in brackets the least and the"
        f" most; seeds {', '.join(map(str, seeds))}. Best at {number(asked[-1])}× first."
    )
    if level:
        text += f" The dense network has {median(level):.2f}."
    yield text
    labels = sorted(
        dict.fromkeys(label for label, _ in groups),
        key=lambda label: [-_middle(groups, label, c) for c in reversed(asked)],
    )
    heads = tuple(f"{number(compression)}×" for compression in asked)
    cells = [(label, *(_accuracy(groups, label, c) for c in asked)) for label in labels]
    yield Table(columns=("method", *heads), cells=tuple(cells)).markdown()
    yield "\n".join(_ends_of_the_table(groups, labels, asked))
    if longest:
        yield (
            "Multiplications of training, with what the run began from, in % of those of the dense"
            " training: what a sparse program would compute, not a time."
        )
        shares = [
            (label, *(_share(groups, label, c, longest, known) for c in asked)) for label in labels
        ]
        yield Table(columns=("method", *heads), cells=tuple(shares)).markdown()


def _steps(row: Row) -> float:
    return row.metrics.get("cost.steps", 0.0)


def _accuracies(groups: Groups, label: str, compression: float) -> list[float]:
    return [
        100 * r.accuracy for r in groups.get((label, compression), []) if r.accuracy is not None
    ]


def _middle(groups: Groups, label: str, compression: float) -> float:
    return median(_accuracies(groups, label, compression) or [0.0])


def _accuracy(groups: Groups, label: str, compression: float) -> str:
    found = _accuracies(groups, label, compression)
    if not found:
        return (
            f"–, {len(groups[label, compression])} lost"
            if groups.get((label, compression))
            else "–"
        )
    text = f"{median(found):.2f}"
    if len(found) > 1:
        text += f" ({min(found):.2f}–{max(found):.2f})"
    # A method that ends at another compression than asked for is not compared here.
    rows = groups[label, compression]
    # A median over the survivors would hide that the others were lost.
    if len(found) < len(rows):
        text += f", {len(rows) - len(found)} of {len(rows)} lost"
    off = [
        r.compression for r in rows if r.compression and abs(r.compression / compression - 1) > 0.05
    ]
    return f"{text} at {number(median(off))}×" if off else text


def _ends_of_the_table(
    groups: Groups, labels: Sequence[str], asked: Sequence[float]
) -> Iterator[str]:
    for compression in asked:
        order = sorted(
            (label for label in labels if _accuracies(groups, label, compression)),
            key=lambda label: -_middle(groups, label, compression),
        )
        lost = [
            markdown_cell(label)
            for label in labels
            if label not in order and (label, compression) in groups
        ]
        if len(order) > 1:
            first, last = order[0], order[-1]
            yield (
                f"* {number(compression)}×: best is {markdown_cell(first)}"
                f" ({_middle(groups, first, compression):.2f}), worst is {markdown_cell(last)}"
                f" ({_middle(groups, last, compression):.2f})."
                # A method without any number is worse than the worst.
                + (f" Lost with every seed: {'; '.join(lost)}." if lost else "")
            )


def _share(
    groups: Groups, label: str, compression: float, dense: float, known: Mapping[str, Row]
) -> str:
    rows = [row for row in groups.get((label, compression), []) if row.metrics]
    found = [sum(_steps(each) for each in _chain(row, known)) / dense for row in rows]
    return f"{100 * median(found):.1f}" if found else "–"


def _chain(row: Row, known: Mapping[str, Row]) -> Iterator[Row]:
    """The run, and those that it continued from."""
    seen = set[str]()
    at: Row | None = row
    # A store from elsewhere may hold runs that need each other in a circle.
    while at is not None and at.key not in seen:
        seen.add(at.key)
        yield at
        at = known.get(at.settings.get("parent") or "")


# What was chosen.


CANDIDATE = ", candidate "
"""Before the number of a candidate, in the label of its runs."""


def chosen_candidates(rows: Sequence[Row]) -> list[str]:
    """The labels of the candidates whose settings the compared runs have."""
    known = {row.key: row for row in rows}
    compared: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    for row in rows:
        if _held_out(row) is None:
            compared.setdefault((row.model, _whole(row), row.label), _settings(row, known))
    found = []
    for row in rows:
        choice, marked, _ = row.label.rpartition(CANDIDATE)
        final = compared.get((row.model, _whole(row), choice))
        if marked and _held_out(row) is not None and final == _settings(row, known):
            found.append(row.label)
    return list(dict.fromkeys(found))


def _tuned(rows: Sequence[Row], compared: Sequence[Row], known: Mapping[str, Row]) -> Iterator[str]:
    """The candidates of every choice, and how well each did on held-out images."""
    needed = {row.settings.get("parent") for row in rows}
    by_choice: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        choice, marked, _ = row.label.rpartition(CANDIDATE)
        if marked and row.key not in needed:
            by_choice[choice][row.label].append(row)
    if not by_choice:
        return
    counts = Counter(len(found) for found in by_choice.values())
    budget = ", ".join(f"{size} for each of {count} methods" for size, count in counts.items())
    asked = sorted({row.asked for row in rows if row.asked is not None})
    seeds = sorted({row.seed for row in rows})
    yield (
        f"Tuning runs: {budget}; at {', '.join(f'{number(c)}×' for c in asked)}, seed"
        f"{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}, on the last"
        f" {_held_out(rows[0])} training images, which these runs did not train on. Chosen is the"
        " greatest accuracy in %."
    )
    cells = []
    for choice, trials in by_choice.items():
        settings = {label: _settings(found[0], known) for label, found in trials.items()}
        differ = [
            name
            for name in dict.fromkeys(name for each in settings.values() for name in each)
            if len({str(each.get(name)) for each in settings.values()}) > 1
        ]
        final = next((_settings(r, known) for r in compared if r.label == choice), None)
        for label, found in trials.items():
            own = ", ".join(f"{name} {settings[label].get(name)}" for name in differ)
            accuracies = [100 * row.accuracy for row in found if row.accuracy is not None]
            score = f"{median(accuracies):.2f}" if accuracies else found[0].state
            chosen = "chosen" if settings[label] == final else ""
            cells.append((choice, own, score, chosen))
    heads = ("method", "settings", "held-out accuracy", "")
    yield Table(columns=heads, cells=tuple(cells)).markdown()


def _settings(row: Row, known: Mapping[str, Row]) -> dict[str, Any]:
    """The settings that decide a run besides data, seed and compression; those of its beginning,
    too.
    """
    found: dict[str, Any] = {}
    for place, each in enumerate(_chain(row, known)):
        before = "before the cut: " if place else ""
        for table in ("method", "train"):
            found |= {
                f"{before}{name}": value
                for name, value in flat(each.settings.get(table, {})).items()
                # The run that it continues from comes next.
                if not name.startswith("after.")
            }
    return found


def _lost(rows: Iterable[Row]) -> Iterator[str]:
    """Runs that did not end well, by what happened."""
    wrong = [row for row in rows if row.state != "done"]
    if wrong:
        yield "Runs that did not end well:"
        yield "\n".join(f"* {markdown_cell(_end(row))}" for row in wrong)


def _made(rows: Sequence[Row]) -> Iterator[str]:
    """Where it was computed, and how long it took."""
    named = (
        (row.provenance, dict(row.provenance.get("versions", {}))) for row in rows if row.provenance
    )
    places = dict.fromkeys(
        f"{found.get('machine')}, threads of a run: {found.get('threads')}, torch"
        f" {versions.get('torch')}, secateurs {versions.get('secateurs')}"
        for found, versions in named
    )
    if places:
        took = clock(sum(row.seconds for row in rows))
        yield f"Computed on {markdown_cell('; '.join(places))}: {len(rows)} runs, {took}."


def _end(row: Row) -> str:
    asked = "" if row.asked is None else f", {number(row.asked)}×"
    return f"{row.label}, seed {row.seed}{asked}: {row.state}, {row.reason}"
