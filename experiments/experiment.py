"""An experiment of a paper as a value: its measurements at each scale, and how its rows compare
with the paper.

A measurement is a piece of work with a name; it returns rows. It runs as a job of the engines that
studies run on, and its rows go to a CSV file when it is done. What is already in the file is
skipped.
"""

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Literal, TypeAlias

import torch
from rich.table import Table

from secateurs.base.cells import markdown_cell, write_csv
from secateurs.base.registry import Registry
from secateurs.base.safefile import file_locks, replacing
from secateurs.errors import ArgumentError, DataError, TrainingError
from secateurs_lab.study.config import How, Watcher
from secateurs_lab.study.database import Row as StoredRow
from secateurs_lab.study.driver import Sweep
from secateurs_lab.study.jobs import Job
from secateurs_lab.study.store import Store, only_writer
from secateurs_lab.study.sweep import drive
from secateurs_lab.train.evaluate import usable_device

Scale: TypeAlias = Literal["smoke", "short", "cpu", "full"]
SCALES: tuple[Scale, ...] = ("smoke", "short", "cpu", "full")
"""A minute; minutes on the digits, where an experiment has it; an hour of two cores; the paper's
own setting."""

Row: TypeAlias = Mapping[str, str]
"""One line of a CSV file: settings and figures as text. `job` names the job it came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A piece of work: equal names mean equal results, so a name contains every setting that
    differs.
    """

    name: str
    work: Callable[[], Iterable[Mapping[str, object]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One figure of ours and the printed one; the deviation is ours − printed, None without a
    printed figure.

    >>> Comparison(what="dense accuracy", ours=(89.3, 89.5), printed=89.1).deviation
    0.3
    """

    what: str
    ours: tuple[float, ...]
    printed: float | None = None
    note: str = ""

    @property
    def mean(self) -> float:
        """The mean of ours over the seeds."""
        return sum(self.ours) / len(self.ours)

    @property
    def deviation(self) -> float | None:
        """Ours minus the printed figure."""
        return None if self.printed is None else round(self.mean - self.printed, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What `python -m experiments NAME` runs.

    Attributes:
        what: One line: tables and figures.
        paper: Which paper.
        jobs: `scale -> jobs`, the most informative first.
        compare: `rows -> figures beside the printed ones`, from as many rows as there are.
        settings: What differs from the paper at each scale, one line. `smoke`, `cpu` and `full` are
            always there, `short` is optional.
        more: Further sections of the page, as Markdown.
    """

    name: str
    paper: str
    what: str
    jobs: Callable[[Scale], Sequence[Measurement]]
    compare: Callable[[Sequence[Row]], Sequence[Comparison]]
    settings: Mapping[Scale, str] = field(default_factory=dict)
    more: Callable[[Sequence[Row]], str] = lambda rows: ""


EXPERIMENTS: Registry[Experiment] = Registry("experiment")
"""The experiments by name: each module of `papers` adds its own, and `catalogue` imports them."""


def publish(experiment: Experiment) -> None:
    """Add an experiment under its name, for `python -m experiments`."""
    EXPERIMENTS.register(experiment.name)(experiment)


def part_of(jobs: Sequence[Measurement], part: str) -> Sequence[Measurement]:
    """Every N-th job from the K-th on, for "K/N": parts can run on different days and machines.

    >>> [job.name for job in part_of([Measurement(name=n, work=list) for n in "abcde"], "2/2")]
    ['b', 'd']
    """
    first, slash, of = part.partition("/")
    valid = slash and first.isdecimal() and of.isdecimal() and 1 <= int(first) <= int(of)
    if not valid:
        raise ArgumentError(
            f"part {part!r} is not of the form 'K/N' with 1 ≤ K ≤ N, such as '1/3'."
        )
    return jobs[int(first) - 1 :: int(of)]


def run(
    measurements: Iterable[Measurement],
    out: Path | None = None,
    *,
    store: Path | None = None,
    how: How | None = None,
    watchers: tuple[Watcher, ...] = (),
) -> list[dict[str, str]]:
    """Do the measurements that are not in `out` (or done in `store`) yet; returns all rows, old and
    new.

    Args:
        measurements: The work.
        out: CSV file to which the rows of each measurement are added when it is done.
        store: Folder of a store to watch and to export from, like that of a study; by default a
            temporary one.
        how: Where and by how many workers; by default one after the other in this process.
        watchers: Objects that are told about progress.

    Raises:
        TrainingError: a measurement failed. The rows of the others are kept.
        Stopped: by SIGINT or SIGTERM, if workers do the work.
    """
    how = how or How(engine="in-process", threads=torch.get_num_threads())
    jobs = {each.name: job_of(each, out) for each in measurements}
    with (
        TemporaryDirectory(prefix="secateurs-") as passing,
        Store.create(store or passing) as opened,
        only_writer(opened.folder),
    ):
        _take_over(opened, list(jobs.values()), out)
        table = [] if out is None else [RowsToCsv(out)]
        drive(Sweep(jobs.values(), opened, how, (*table, *watchers)))
        ended = opened.rows()
    failed = [row for row in ended if row.state != "done"]
    if failed:
        raise TrainingError(
            f"{len(failed)} of {len(ended)} jobs failed; the first was {failed[0].label!r}: "
            f"{failed[0].reason} The rows of the others are kept; run the same command to retry "
            "the failed ones."
        )
    return [dict(line) for row in ended for line in row.rows] if out is None else read_rows(out)


def job_of(measurement: Measurement, out: Path | None = None) -> Job:
    """The measurement as a job, which checks `out` again before it starts."""
    row = StoredRow(
        key=sha256(measurement.name.encode()).hexdigest()[:16],
        label=measurement.name,
        kind="experiment",
        data="",
        model="",
        seed=0,
    )
    where = None if out is None else out.resolve()
    work = partial(_measure, measurement, row, where, str(chosen_device()))
    return Job(row=row, work=work, stoppable=False)


def _measure(
    measurement: Measurement, row: StoredRow, out: Path | None, device: str, *_: object
) -> StoredRow:
    """Do the work, unless another process has done it in the meantime; its row in the store."""
    start = perf_counter()
    try:
        # All rows of a measurement or none: one that was interrupted is done again.
        rows = _by_measurement(out).get(measurement.name, [])
        if not rows:
            with on_device(device):
                found = [as_texts(line) for line in measurement.work()]
            rows = [{"job": measurement.name, **line} for line in found]
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return replace(row, state="failed", reason=reason, progress=1.0)
    seconds = perf_counter() - start
    return replace(row, state="done", rows=tuple(rows), seconds=seconds, progress=1.0)


def _take_over(opened: Store, jobs: Sequence[Job], out: Path | None) -> None:
    """Mark what is done in the file or in the store as done in both; failed jobs wait again."""
    opened.add(job.row for job in jobs)
    known = _by_measurement(out)
    for row in opened.rows():
        written = known.get(row.label, [])
        if written and row.state != "done":
            opened.put(replace(row, state="done", rows=tuple(written), progress=1.0))
        elif out is not None and row.rows and not written:
            append_rows(out, row.rows)
        elif row.ended and row.state != "done":
            opened.reset(row.key)


def _by_measurement(out: Path | None) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for row in [] if out is None else read_rows(out):
        found.setdefault(row["job"], []).append(row)
    return found


class RowsToCsv:
    """A watcher that writes the rows of each job to a CSV file when it is done."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def begin(self, rows: Sequence[StoredRow]) -> None:
        """Earlier results are already in the file."""

    def news(self, key: str, news: Mapping[str, object]) -> None:
        """Nothing is written until a job is done."""

    def ended(self, row: StoredRow) -> None:
        """A training that diverged at once may have no rows."""
        if row.rows:
            append_rows(self.out, row.rows)


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        text = file.read()
    # A copy that was cut in a figure would else pass for one with another figure.
    if text and not text.endswith("\n"):
        raise DataError(
            f"{path} does not end with a line feed: its last line is cut short. Delete the rows of"
            " the last job and run the same command, which does this job again."
        )
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    # A line that is too short leaves a value None, one that is too long a key None.
    if any("job" not in row or None in row or None in row.values() for row in rows):
        raise DataError(
            f"{path} is not a table of experiments: a line is cut short, or the column 'job' is "
            "missing."
        )
    return rows


def check_experiment(experiment: Experiment, path: Path) -> None:
    """Refuse the file of another experiment before anything runs or is added to it."""
    try:
        experiment.compare(read_rows(path))
    except KeyError as error:
        raise DataError(
            f"{path} has no column {error}: it does not belong to the experiment "
            f"{experiment.name}. Give another file as --out."
        ) from None


def append_rows(path: Path, rows: Sequence[Row]) -> None:
    """Add the rows of a job, unless it has some there. All rows of a file have the same columns.

    The file is written anew and takes its name when it is whole: a job of which a kill or a full
    disk left half of the rows would count as done.
    """
    # Where a link leads, since the link would be replaced.
    path = path.resolve()
    with _locked(path):
        known = read_rows(path)
        # Under another head the values would stand in the wrong columns.
        if known and list(known[0]) != list(rows[0]):
            raise DataError(
                f"{path} has other columns than these rows: it belongs to another experiment or to "
                "an earlier version. Give another file as --out."
            )
        if any(row["job"] == rows[0]["job"] for row in known):
            return
        before = path.read_bytes()
        head = [] if before else [list(rows[0])]
        with replacing(path, error=DataError) as part:
            part.write_bytes(before)
            with part.open("a", newline="", encoding="utf-8") as file:
                write_csv(file, [*head, *([row.get(name, "") for name in rows[0]] for row in rows)])


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Other processes may add other parts to the same file: one after the other."""
    while True:
        with path.open("a", encoding="utf-8") as file:
            file_locks().flock(file, file_locks().LOCK_EX)
            # Another process may have replaced the file while we waited for it.
            if os.path.exists(path) and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                yield
                return


def as_texts(row: Mapping[str, object]) -> dict[str, str]:
    """Settings and figures as they are written to a file: floats with six digits."""
    return {
        name: f"{value:.6g}" if isinstance(value, float) else str(value)
        for name, value in row.items()
    }


# An experiment's figures beside the printed ones, for a terminal and as a page of Markdown.

COLUMNS = ("what", "ours", "seeds", "printed", "deviation", "")


def as_table(experiment: Experiment, figures: Sequence[Comparison]) -> Table:
    """Our figures, the printed ones and the deviations."""
    shown = Table(title=f"{experiment.paper}: {experiment.what}")
    for name in COLUMNS:
        shown.add_column(name, overflow="fold")
    for figure in figures:
        shown.add_row(*cells(figure))
    return shown


def markdown(
    experiment: Experiment, figures: Sequence[Comparison], *, scale: Scale, more: str = ""
) -> str:
    """The same as a page, with the command, what differs from the paper, and further sections."""
    name = experiment.name
    lines = [
        f"# {experiment.paper}: {experiment.what}",
        "",
        f"Command: `python -m experiments {name} --scale {scale} --out {name}.csv`.",
        f"Here: {experiment.settings.get(scale, '')}.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{' --- |' * len(COLUMNS)}",
        *(f"| {' | '.join(map(markdown_cell, cells(figure)))} |" for figure in figures),
        "",
    ]
    return "\n".join(lines) + more


def cells(figure: Comparison) -> tuple[str, ...]:
    """One line of either table.

    >>> cells(Comparison(what="accuracy %", ours=(84.0, 86.0), printed=84.5))
    ('accuracy %', '85 (84 to 86)', '2', '84.5', '+0.5', '')
    """
    # A single seed has no spread.
    spread = (
        f" ({_number(min(figure.ours))} to {_number(max(figure.ours))})"
        if len(figure.ours) > 1
        else ""
    )
    printed = "" if figure.printed is None else _number(figure.printed)
    deviation = "" if figure.deviation is None else f"{figure.deviation:+.4g}"
    ours = f"{_number(figure.mean)}{spread}"
    return figure.what, ours, str(len(figure.ours)), printed, deviation, figure.note


def _number(value: float) -> str:
    return f"{value:.4g}"


# Where an experiment trains: on the CPU, unless the caller names another device.
#
# The device is not a setting and not part of a job's name, since rows differ only by rounding.

_DEVICE: ContextVar[str] = ContextVar("device", default="cpu")


def chosen_device() -> torch.device:
    """The device that models and data of an experiment are moved to."""
    return torch.device(_DEVICE.get())


@contextmanager
def on_device(device: str) -> Iterator[None]:
    """A context in which experiments run on this device; one that the machine lacks is refused."""
    token = _DEVICE.set(str(usable_device(device)))
    try:
        yield
    finally:
        _DEVICE.reset(token)
