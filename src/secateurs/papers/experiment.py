"""An experiment of a paper as a value: which jobs it has at which scale, and how its rows stand
beside print.

A job is a piece of work with a name; it returns rows. Rows go to a CSV file as they come, under the
job's name, so that a run that was stopped goes on where it was: what is in the file is skipped.
"""

import csv
import fcntl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from rich.table import Table

from secateurs import foreign
from secateurs.errors import ArgumentError, DataError
from secateurs.foreign import write_csv
from secateurs.registry import Registry
from secateurs.train.evaluate import usable_device

Scale: TypeAlias = Literal["smoke", "short", "cpu", "full"]
SCALES: tuple[Scale, ...] = ("smoke", "short", "cpu", "full")
"""A minute; minutes on the digits, where an experiment has it; an hour of two cores; the paper's
own setting."""

Row: TypeAlias = Mapping[str, str]
"""One line of a CSV file: settings and figures as text. `job` names the job it came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A piece of work: equal names mean equal results, so a name carries every setting that
    differs.
    """

    name: str
    work: Callable[[], Iterable[Mapping[str, object]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """One figure of ours beside the printed one; the deviation is ours − print, None without a
    printed figure.

    >>> Beside(what="dense accuracy", ours=(89.3, 89.5), printed=89.1).deviation
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
        """Ours less print's."""
        return None if self.printed is None else round(self.mean - self.printed, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What `secateurs reproduce NAME` runs.

    Attributes:
        what: One line: tables and figures.
        paper: Which paper.
        jobs: `scale -> jobs`, the most telling first.
        beside: `rows -> figures beside print`, from as many rows as there are.
        settings: What differs from print at each scale, one line.
        more: Further sections of the page, as Markdown.
    """

    name: str
    paper: str
    what: str
    jobs: Callable[[Scale], Sequence[Job]]
    beside: Callable[[Sequence[Row]], Sequence[Beside]]
    settings: Mapping[Scale, str] = field(default_factory=dict)
    more: Callable[[Sequence[Row]], str] = lambda rows: ""


EXPERIMENTS: Registry[Experiment] = Registry("experiment")
"""The experiments by name; each file of `reproduce` files its own."""


def part_of(jobs: Sequence[Job], part: str) -> Sequence[Job]:
    """Every N-th job from the K-th on, for "K/N": parts can run on different days and machines.

    >>> [job.name for job in part_of([Job(name=n, work=list) for n in "abcde"], "2/2")]
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
    jobs: Iterable[Job],
    out: Path | None = None,
    *,
    tell: Callable[[str], object] = lambda line: None,
) -> list[dict[str, str]]:
    """Do the jobs whose rows are not in `out` yet; returns all rows, old and new.

    Another process may grow the same file: each job is looked up just before it would start.
    """
    rows = read_rows(out) if out is not None else []
    for job in jobs:
        # Read again for every job, because another process may have done it meanwhile.
        known = read_rows(out) if out is not None else rows
        if any(row["job"] == job.name for row in known):
            continue
        tell(job.name)
        # All rows of a job or none: one that was stopped is done again.
        fresh = [{"job": job.name, **_texts(row)} for row in job.work()]
        rows += fresh
        # A training that diverged at once may have nothing to tell.
        if out is not None and fresh:
            append_rows(out, fresh)
    return rows if out is None else read_rows(out)


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    # A line too short leaves a value None, one too long a key None.
    if any("job" not in row or None in row or None in row.values() for row in rows):
        raise DataError(
            f"{path} is no table of experiments: a line is cut, or the column 'job' is missing."
        )
    return rows


def check_own(experiment: Experiment, path: Path) -> None:
    """Refuse a file of another experiment, before anything runs or is added to it."""
    try:
        experiment.beside(read_rows(path))
    except KeyError as error:
        raise DataError(
            f"{path} has no column {error}: it is of another experiment than"
            f" {experiment.name}. Give another file as --out."
        ) from None


def append_rows(path: Path, rows: Sequence[Row]) -> None:
    """Add rows under a lock. All rows of a file have the same columns."""
    known = read_rows(path)
    # Under another head the values would stand in the wrong columns.
    if known and list(known[0]) != list(rows[0]):
        raise DataError(
            f"{path} has other columns than these rows: it is of another experiment or"
            " of an earlier version. Give another file as --out."
        )
    with path.open("a", newline="") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # Asked under the lock, or two processes could
        # both write the names of the columns.
        head = [list(rows[0])] if path.stat().st_size == 0 else []
        write_csv(file, [*head, *([row.get(name, "") for name in rows[0]] for row in rows)])


def _texts(row: Mapping[str, object]) -> dict[str, str]:
    return {
        name: f"{value:.6g}" if isinstance(value, float) else str(value)
        for name, value in row.items()
    }


# An experiment's figures beside print, for a terminal and as a page of Markdown.

COLUMNS = ("what", "ours", "seeds", "print", "deviation", "")


def as_table(experiment: Experiment, figures: Sequence[Beside]) -> Table:
    """Ours, print's and the deviation."""
    shown = Table(title=f"{experiment.paper}: {experiment.what}")
    for name in COLUMNS:
        shown.add_column(name, overflow="fold")
    for figure in figures:
        shown.add_row(*cells(figure))
    return shown


def markdown(
    experiment: Experiment, figures: Sequence[Beside], *, scale: Scale, more: str = ""
) -> str:
    """The same as a page, with the command, what differs from print, and further sections."""
    name = experiment.name
    lines = [
        f"# {experiment.paper}: {experiment.what}",
        "",
        f"Command: `secateurs reproduce {name} --scale {scale} --out {name}.csv`.",
        f"Here: {experiment.settings.get(scale, '')}.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{' --- |' * len(COLUMNS)}",
        *(f"| {' | '.join(map(foreign.markdown, cells(figure)))} |" for figure in figures),
        "",
    ]
    return "\n".join(lines) + more


def cells(figure: Beside) -> tuple[str, ...]:
    """One line of either table.

    >>> cells(Beside(what="accuracy %", ours=(84.0, 86.0), printed=84.5))
    ('accuracy %', '85 (84 to 86)', '2', '84.5', '+0.5', '')
    """
    # A single seed has no spread to show.
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


# Where the trainings of an experiment run: the CPU, unless the caller says another device.
#
# A device is no setting: it is not in the name of a job, since rows differ by rounding alone.

_PLACE: ContextVar[str] = ContextVar("place", default="cpu")


def place() -> torch.device:
    """The device that models and data of an experiment are moved to."""
    return torch.device(_PLACE.get())


@contextmanager
def placed(device: str) -> Iterator[None]:
    """Inside, experiments run there; a device that this machine lacks is refused."""
    token = _PLACE.set(str(usable_device(device)))
    try:
        yield
    finally:
        _PLACE.reset(token)
