"""The demo itself: run the study, write its page, ship the best network."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from rich.console import Group, RenderableType
from rich.table import Table
from torch import nn

from secateurs.base.printing import Screen
from secateurs.base.prunable import prunable
from secateurs.base.safefile import replacing
from secateurs.channels import compact
from secateurs.errors import ArgumentError, SecateursError
from secateurs.files import FileSizes, save_sparse
from secateurs.masks import save_masks
from secateurs.proof import StatisticalCertificate, certify, statistical
from secateurs.ship import accelerate, measure
from secateurs_lab.data import Dataset
from secateurs_lab.report import tables, write_page
from secateurs_lab.report.series import frontier
from secateurs_lab.study import Certify, Dwf, Method, Prune, Row, Store, Study, Training
from secateurs_lab.study import run as run_study
from secateurs_lab.study.measure import Bench, network
from secateurs_lab.study.watching import shown_here
from secateurs_lab.train import save_model

# The results: all rows, and the network that is shipped.

CLOSE = 0.01
"""A sparse network is as good as its dense one if it loses at most one point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All results, and the sparsest network within a point of its dense one, if there is any.

    Attributes:
        rows: One per run.
        best: The row of the network that is shipped.
        before: The row of the dense network of the same seed.
        dense, sparse: Both networks.
    """

    data: Dataset
    rows: tuple[Row, ...]
    best: Row
    before: Row
    dense: nn.Module
    sparse: nn.Module


def outcome(study: Study, store: Store) -> Outcome:
    """Read the results of a finished study, and choose a network."""
    rows = tuple(store.rows())
    best = best_run(rows)
    before = _dense(rows, best.seed)
    data, _ = Bench(device="cpu").data(study.data[0])
    dense, sparse = (_network(study, store, row, data).eval() for row in (before, best))
    return Outcome(data=data, rows=rows, best=best, before=before, dense=dense, sparse=sparse)


def best_run(rows: Sequence[Row]) -> Row:
    """The sparsest run that loses at most a point, among several the most accurate; if there is
    none, the most accurate of all.
    """
    sparse = [row for row in rows if row.state == "done" and row.kind != "dense"]
    if not sparse:
        raise ArgumentError("no sparse network finished training.")
    # Within a point of the dense network of the same seed: seeds differ by more than that.
    close = [row for row in sparse if _accuracy(row) >= _limit(rows, row.seed)]
    if close:
        # By the compression asked for: the one reached differs by rounding, which should not
        # decide.
        return max(close, key=lambda row: (row.asked or 0.0, _accuracy(row)))
    return max(sparse, key=_accuracy)


def _limit(rows: Sequence[Row], seed: int) -> float:
    return _accuracy(_dense(rows, seed)) - CLOSE


def _dense(rows: Sequence[Row], seed: int) -> Row:
    return next(row for row in rows if row.kind == "dense" and row.seed == seed)


def _accuracy(row: Row) -> float:
    return row.accuracy or 0.0


def _network(study: Study, store: Store, row: Row, data: Dataset) -> nn.Module:
    model = network(study.model[0], data, row.seed)
    if row.weights is None:
        raise ArgumentError(f"run {row.key} ended as {row.state} and left no weights.")
    model.load_state_dict(store.tensors(row.weights))
    return model


# The end of the demo: making the network smaller and faster, and what that gains on this machine.

FILE = "shipped.safetensors"


def ship_pruned(outcome: Outcome) -> RenderableType:
    """The pruned network, compacted and on the fast path, measured against the dense one."""
    dense, sparse = outcome.dense, outcome.sparse
    example = outcome.data.test_x[:1]
    # In a user's order: first dead channels are cut, then the rest is made fast.
    small = compact(sparse, example)
    forms = {"dense": dense, "pruned": sparse, "compact": small}
    forms["fast"] = accelerate(small, example, rivals={})
    before, after = (sum(p.numel() for p in model.parameters()) for model in (sparse, small))
    said = f"Compacted exactly: {before:,} parameters became {after:,}."
    return Group(said, measure(forms, example, batch_sizes=(1, 64), seconds=1.0))


def ship(outcome: Outcome, out: Path, notes: dict[str, str]) -> FileSizes:
    """Write the pruned network without its zeros, with its certificate inside."""
    test = outcome.data.test_x[:2000]
    try:
        held: StatisticalCertificate | None = statistical(outcome.dense, outcome.sparse, data=test)
    except SecateursError:  # a network without a certificate is shipped all the same
        held = None
    return save_sparse(outcome.sparse, out / FILE, notes=notes, certificate=held)


# The sections below the table, one line each; append your own to `SECTIONS`.

Section: TypeAlias = Callable[[Outcome], RenderableType]
"""Something to show below the table."""


RADIUS = 1 / 255
"""One step of an eight-bit pixel."""
BALLS = 8


def certificate(outcome: Outcome) -> str:
    """What pruning may change: on inputs like the test set, and for certain within small balls
    around a few of them.
    """
    dense, sparse, best = outcome.dense, outcome.sparse, outcome.best
    some = outcome.data.test_x[:BALLS]
    # Two kinds of statement: what to expect on fresh inputs like these, with a stated confidence,
    # and what holds for every point of some small balls.
    seen = statistical(dense, sparse, data=outcome.data.test_x[:2000])
    proven = certify(dense, sparse, around=some, radius=RADIUS, methods="linear", restarts=1)
    share = proven.certified_share(some)
    return (
        f"{best.label} at {best.compression:.0f}×, against its dense network:\n"
        f"{seen}\n{proven}; of {len(some)} test images {share:.0%} provably"
        " keep their class."
    )


SECTIONS: list[Section] = [ship_pruned, certificate]
"""What the demo shows at its end."""


# The study of the demo: its methods, lengths and sparsities.


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long everything takes. The defaults take about a minute of two cores.

    Every method trains for the same total number of epochs: `dense` and then `tuning` if a trained
    network is cut, `whole` if the training itself is sparse.
    """

    compressions: tuple[float, ...] = (10, 20, 50, 100)
    seeds: tuple[int, ...] = (0, 1)
    dense: str = "80ep"
    tuning: str = "40ep"
    whole: str = "120ep"
    rounds: int = 100
    balls: int = 8


QUICK: dict[str, Any] = {
    "compressions": (10,),
    "dense": "6ep",
    "tuning": "3ep",
    "whole": "9ep",
    "rounds": 5,
}
"""A few seconds instead of a minute."""

METHODS: dict[str, Callable[[Settings], Method]] = {
    "magnitude": lambda s: Prune(),
    "magnitude, drawn": lambda s: Prune(how="sample"),
    "path": lambda s: Prune(score="path", rounds=min(20, s.rounds)),
    "snip": lambda s: _fresh("snip", s),
    "synflow": lambda s: _fresh("synflow", s, rounds=s.rounds),
    "random": lambda s: _fresh("random", s),
    # A rate of 0.3 and a small initial λ: at the usual 0.5 the steering overshoots in so few steps
    # (1,440), and at 100× one of two runs diverged.
    "factorized": lambda s: Dwf(target=True, strength=3e-4, train={"lr": 0.3, "length": s.whole}),
}
"""The lines of the figures: `settings -> method`."""


def plan(settings: Settings, data: Any) -> Study:
    """The study that compares `METHODS` on a LeNet-300-100."""
    methods = tuple(replace(make(settings), label=name) for name, make in METHODS.items())
    return Study(
        name="demo",
        data=data,
        model="lenet-300-100",
        methods=methods,
        compressions=settings.compressions,
        seeds=settings.seeds,
        train=Training(length=settings.dense),
        tune=Training(length=settings.tuning, lr=0.05),
        certify=Certify(images=settings.balls),
    )


def _fresh(score: str, settings: Settings, *, rounds: int = 1) -> Prune:
    """Pruning before training, which is then as long as the two trainings of the others."""
    return Prune(score=score, rounds=rounds, after="init", train={"length": settings.whole})


# The table of the demo, and its files.


def table(outcome: Outcome) -> Table:
    """Median test accuracy by method and compression."""
    rows, best = outcome.rows, outcome.best
    asked = sorted({row.asked for row in rows if row.asked})
    seeds = len({row.seed for row in rows})
    shown = Table(
        title=f"LeNet-300-100 on {outcome.data.name}: test accuracy"
        + (f", median of {seeds} seeds" if seeds > 1 else ""),
        caption=f"dense {tables.dense_accuracy(rows):.1f} %; shipped: {best.label} at"
        f" {best.compression:.0f}×, seed {best.seed}, {100 * (best.accuracy or 0):.1f} %",
    )
    shown.add_column("method")
    for compression in asked:
        shown.add_column(f"{compression:g}× smaller", justify="right")
    for label in dict.fromkeys(row.label for row in rows if row.asked):
        cells = (_cell([r for r in rows if (r.label, r.asked) == (label, c)]) for c in asked)
        shown.add_row(label, *cells)
    return shown


def _cell(group: list[Row]) -> str:
    """The median, or how the runs without an accuracy ended."""
    found = [100 * row.accuracy for row in group if row.accuracy is not None]
    ends = sorted({row.state for row in group if row.accuracy is None})
    return f"{median(found):.1f} %" if found else ", ".join(ends)


def write(outcome: Outcome, out: Path) -> list[Path]:
    """Dense and pruned checkpoint, masks, the sparse file with its certificate, and the results as
    CSV and Markdown. Returns the files.
    """
    data = outcome.data
    notes = {"arch": "lenet-300-100", "classes": str(data.classes)}
    notes |= {"in_channels": str(data.in_channels), "size": str(data.size)}
    dense, pruned, masks = (out / f"{name}.safetensors" for name in ("dense", "pruned", "masks"))
    save_model(outcome.dense, dense, notes=notes)
    save_model(outcome.sparse, pruned, notes=notes)
    kept = {name: p != 0 for name, p in prunable(outcome.sparse).items()}
    save_masks(kept, masks)
    ship(outcome, out, notes)
    runs = tables.runs(outcome.rows)
    rows = _text(out / "results.csv", runs.csv())
    text = _text(out / "results.md", _markdown(outcome))
    return [dense, pruned, masks, out / FILE, rows, text]


def _text(path: Path, text: str) -> Path:
    # A table that is being read elsewhere is replaced as a whole.
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


def _markdown(outcome: Outcome) -> str:
    """The two tables of the page that fit into a text."""
    rows, dense = outcome.rows, tables.dense_accuracy(outcome.rows) or 0.0
    lines = [line for line in frontier(rows) if line.name != outcome.before.label]
    head = (
        f"LeNet-300-100 on {outcome.data.name}; the dense network has {dense:.2f} %.\n"
        f"`pruned.safetensors` is {outcome.best.label} at {outcome.best.compression:.1f}×,"
        f" seed {outcome.best.seed}.\n"
    )
    largest = tables.largest(lines, dense).markdown()
    parts = [head, "Largest compression:\n", largest, "\nAll runs:\n"]
    return "\n".join([*parts, tables.runs(rows).markdown(), ""])


STORE, PAGE = "demo.study", "report.html"


def run(
    out: Path,
    *,
    data: Any = "digits",
    settings: Settings | None = None,
    console: Screen | None = None,
    engine: str = "in-process",
) -> Outcome:
    """Run the demo and write the study, its page and the shipped network into the folder `out`.

    Nothing is computed twice: an interrupted demo continues.

    Args:
        out: The folder.
        data: A name of `secateurs data`, or a data set.
        settings: How long everything takes.
        console: Where results are printed.
        engine: "in-process" for one run after the other, "local" for two worker processes.
    """
    console, study = console or Screen(), plan(settings or Settings(), data)
    console.print(f"[dim]a study of {len(study.runs())} runs; it lies in {out}/{STORE}[/]")
    workers = min(2, os.cpu_count() or 1)
    watcher = shown_here()
    try:
        store = run_study(
            study,
            out / STORE,
            engine=engine,
            workers=workers if engine == "local" else 1,
            watchers=(watcher,),
        )
    # The live display is closed first, or its last frame would cover an error message.
    finally:
        watcher.close()
    with store:
        result = outcome(study, store)
    console.print(table(result), *(section(result) for section in SECTIONS), sep="\n")
    written = write(result, out)
    page = write_page(out / STORE, out / PAGE, figures=out / "figures")
    console.print(
        f"[dim]written to {out}/: {', '.join(path.name for path in written)}, figures/[/]\n"
        f"[bold]open {page}[/] to look at everything",
        highlight=False,
        soft_wrap=True,
    )
    return result
