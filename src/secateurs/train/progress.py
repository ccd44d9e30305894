"""What a run shows while it goes: a bar on a terminal, one line per epoch elsewhere, nothing if
asked.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress

from secateurs.printing import Screen


class Line(Protocol):
    """The figures of an epoch that are shown."""

    @property
    def epoch(self) -> int: ...
    @property
    def loss(self) -> float: ...
    @property
    def test_accuracy(self) -> float | None: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def seconds(self) -> float: ...


class Progress:
    """Shows nothing."""

    def step(self, done: int) -> None:
        """`done` optimizer steps are taken."""

    def epoch(self, line: Line) -> None:
        """An epoch has ended."""


class _Lines(Progress):
    """One line per epoch."""

    def __init__(self, console: Screen) -> None:
        self.console = console

    def epoch(self, line: Line) -> None:
        self.console.print(written(line), highlight=False, soft_wrap=True)


class _Bar(Progress):
    """A bar that says the last epoch's figures."""

    def __init__(self, bar: RichProgress, total: int) -> None:
        self.bar = bar
        self.task = bar.add_task("training", total=total)

    def step(self, done: int) -> None:
        if done % 10 == 0:  # a small network makes a thousand steps a second
            self.bar.update(self.task, completed=done)

    def epoch(self, line: Line) -> None:
        self.bar.update(self.task, description=written(line))


@contextmanager
def progress(
    total: int, *, verbose: bool = True, console: Screen | None = None
) -> Iterator[Progress]:
    """The way to show `total` steps here, on standard error."""
    console = Screen(stderr=True) if console is None else console
    if not verbose:
        yield Progress()
    # A bar redrawn into a log file would fill it with control characters.
    elif not console.is_terminal:
        yield _Lines(console)
    else:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with RichProgress(*columns, console=console, transient=True) as bar:
            yield _Bar(bar, total)


def written(line: Line) -> str:
    """An epoch in one line."""
    accuracy = (
        ""
        if line.test_accuracy is None
        else f"  accuracy {100 * line.test_accuracy:6.2f} %"
    )
    return (
        f"epoch {line.epoch:3d}  loss {line.loss:.4f}{accuracy}  rate {line.learning_rate:.3g} "
        f" {line.seconds:.1f} s"
    )
