"""`fit`: train a model in place, with any torch optimizer, schedules and callbacks as functions."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol, TypedDict, Unpack

import torch
import torch.nn.functional as F
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs.base.parameters import aliases
from secateurs.base.printing import Screen
from secateurs.base.registry import unknown
from secateurs.base.step import Step
from secateurs.errors import ArgumentError, DataError
from secateurs_lab.data.dataset import Dataset
from secateurs_lab.train.denormals import flushed_denormals
from secateurs_lab.train.evaluate import (
    Loss,
    Losses,
    device_of,
    evaluate,
    keep_modes,
    not_logits,
    usable_device,
)
from secateurs_lab.train.moment import (
    Callback,
    Epoch,
    Fitted,
    Moment,
    Standing,
    keep_rates,
    put_,
    rates_of,
    state_of,
)
from secateurs_lab.train.ranks import ALONE, Ranks
from secateurs_lab.train.schedules import Clock, Schedule, constant

# What a run shows while it trains: a bar on a terminal, one line per epoch elsewhere, nothing if
# asked.


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
    """Shows nothing; the base of the other two."""

    def step(self, done: int) -> None:
        """`done` optimizer steps are taken."""

    def epoch(self, line: Line) -> None:
        """An epoch has ended."""


class _Lines(Progress):
    """One line per epoch."""

    def __init__(self, console: Screen) -> None:
        self.console = console

    def epoch(self, line: Line) -> None:
        self.console.print(describe_epoch(line), highlight=False, soft_wrap=True)


class _Bar(Progress):
    """A progress bar that shows the last epoch's figures."""

    def __init__(self, bar: RichProgress, total: int) -> None:
        self.bar = bar
        self.task = bar.add_task("training", total=total)

    def step(self, done: int) -> None:
        if done % 10 == 0:  # a small network makes a thousand steps a second
            self.bar.update(self.task, completed=done)

    def epoch(self, line: Line) -> None:
        self.bar.update(self.task, description=describe_epoch(line))


@contextmanager
def progress(
    total: int, *, verbose: bool = True, console: Screen | None = None
) -> Iterator[Progress]:
    """How the progress of `total` steps is shown here, on standard error."""
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


def describe_epoch(line: Line) -> str:
    """An epoch in one line."""
    accuracy = "" if line.test_accuracy is None else f"  accuracy {100 * line.test_accuracy:6.2f} %"
    return (
        f"epoch {line.epoch:3d}  loss {line.loss:.4f}{accuracy}  rate {line.learning_rate:.3g} "
        f" {line.seconds:.1f} s"
    )


# A training as a value: what is trained on what, how, and how long.


class Augment(Protocol):
    """`(images, generator=...) -> images`, such as `data.augment`."""

    def __call__(self, x: Tensor, *, generator: torch.Generator | None) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """All the arguments of a training; `Loop`, which runs it, explains each field."""

    model: nn.Module
    data: Dataset
    optimizer: Optimizer
    length: Step | str | int
    loss: Loss = F.cross_entropy
    batch: int = 128
    drop_last: bool = False
    schedule: Schedule = constant
    callbacks: Sequence[Callback] = ()
    augment: Augment | None = None
    generator: torch.Generator | None = None
    evaluate_every: int = 1
    stop: int | None = None
    precision: str = "float32"
    ranks: Ranks = ALONE
    forward: Callable[[Tensor], Any] | None = None

    @property
    def per_epoch(self) -> int:
        """Optimizer steps of an epoch."""
        examples = len(self.data.train_y)
        count = examples // self.batch if self.drop_last else -(-examples // max(1, self.batch))
        if self.batch < 1 or count < 1:
            raise ArgumentError(
                f"batches of {self.batch} cannot be taken from {examples} examples; choose 1 to "
                f"{examples}."
            )
        return count

    @property
    def total(self) -> int:
        """Optimizer steps of the whole training."""
        return Step.parse(self.length).iterations(self.per_epoch)


class Running:
    """A loop under way."""

    def __init__(self, loop: Training, standing: Standing | None, show: Progress) -> None:
        self.loop, self.show = loop, show
        self.per_epoch, self.total = loop.per_epoch, loop.total
        self.end = self.total if loop.stop is None else min(self.total, loop.stop)
        self.rates = standing.rates if standing else rates_of(loop.optimizer)
        self.history = list(standing.history) if standing else []
        self.left = standing
        self.device = device_of(loop.model)

    def run(self) -> Fitted:
        start = perf_counter()
        # The history tells how many epochs have ended, so a resumed run begins in the
        # one under way.
        for epoch in range(len(self.history), math.ceil(self.end / self.per_epoch)):
            self.history.append(self._epoch(epoch))
            self.show.epoch(self.history[-1])
        return Fitted(
            history=tuple(self.history),
            iterations=self.end,
            seconds=perf_counter() - start,
        )

    def _epoch(self, epoch: int) -> Epoch:
        loop, start, first = self.loop, perf_counter(), epoch * self.per_epoch
        last = min(first + self.per_epoch, self.end)
        done = self._begin(first)
        # A callback or an evaluation may have left the model in evaluation mode.
        loop.model.train()
        for iteration, (x, y) in enumerate(self._batches(done, last - first), start=first + done):
            self._set_rates(Clock(iteration, self.per_epoch, self.total))
            self._step(x, y)
            self.show.step(iteration + 1)
        loss = loop.ranks.mean(self.losses.mean(), self.losses.examples, self.device)
        # The last epoch is always evaluated: its accuracy is what a run is judged by.
        tested = loop.evaluate_every and (
            (epoch + 1) % loop.evaluate_every == 0 or last == self.end
        )
        test = evaluate(loop.model, loop.data, loss=loop.loss) if tested else None
        return Epoch(
            epoch=epoch + 1,
            iteration=last,
            loss=loss,
            test_loss=test.loss if test else None,
            test_accuracy=test.accuracy if test else None,
            learning_rate=float(loop.optimizer.param_groups[0]["lr"]),
            seconds=perf_counter() - start,
        )

    def _begin(self, first: int) -> int:
        """Start the statistics of an epoch, or restore them if the training stopped within it;
        returns the number of batches done.
        """
        loop, left = self.loop, self.left
        done, sums = (
            (left.iteration - first, (left.loss_sum, left.examples)) if left else (0, (0.0, 0))
        )
        self.losses = Losses(
            iteration=first + done,
            per_epoch=self.per_epoch,
            total=self.total,
            done=sums,
        )
        if left is not None:
            put_(loop.generator, left.order)
        self.order = state_of(loop.generator)
        return done

    def _batches(self, done: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """What is left of the epoch, in the order that was drawn at its beginning."""
        loop, left, self.left = self.loop, self.left, None
        batches = loop.data.batches(
            loop.batch, generator=loop.generator, drop_last=loop.drop_last, skip=done
        )
        rest = islice(batches, count - done)
        if left is not None:
            # Draws the order; then the generator is where it was left.
            ahead = next(rest, None)
            put_(loop.generator, left.drawn)
            if ahead is not None:
                yield ahead
        yield from rest

    def _step(self, x: Tensor, y: Tensor) -> None:
        loop = self.loop
        x, y, weight = loop.ranks.share(x, y)
        if loop.augment is not None:
            x = loop.augment(x, generator=loop.generator)
        loop.optimizer.zero_grad(set_to_none=True)
        # Forward and loss only: backward runs in the dtypes that the forward pass has
        # chosen.
        with self._autocast():
            outputs = (loop.forward or loop.model)(x)
            # A loss of the user's own may take anything.
            if loop.loss is F.cross_entropy and not isinstance(outputs, Tensor):
                raise ArgumentError(not_logits(outputs))
            loss = loop.loss(outputs, y)
        self.losses.add(loss.detach(), len(y))
        # Ranks whose shares differ in size weigh their losses, so that the mean is that
        # of the batch.
        (loss if weight == 1 else loss * weight).backward()  # type: ignore[no-untyped-call]
        loop.optimizer.step()
        if loop.callbacks:
            self._tell(loss.detach())

    def _tell(self, loss: Tensor) -> None:
        loop, clock = (
            self.loop,
            Clock(self.losses.iteration, self.per_epoch, self.total),
        )
        moment = Moment(
            model=loop.model,
            optimizer=loop.optimizer,
            clock=clock,
            loss=loss,
            standing=self.standing,
        )
        for callback in loop.callbacks:
            callback(moment)

    def standing(self) -> Standing:
        """Where this training stands, after a step."""
        self.losses.look()
        return Standing(
            iteration=self.losses.iteration,
            order=self.order,
            drawn=state_of(self.loop.generator),
            loss_sum=self.losses.sum,
            examples=self.losses.examples,
            rates=self.rates,
            history=tuple(self.history),
        )

    def _set_rates(self, clock: Clock) -> None:
        """base · factor, for each group."""
        factor = self.loop.schedule(clock)
        # Base times factor, never the last rate times something: rounding would add up
        # over a run.
        for group, base in zip(self.loop.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = base * factor
        # Remembered for the message of a loss that becomes NaN.
        self.losses.rate = float(self.loop.optimizer.param_groups[0]["lr"])

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.loop.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop(Training):
    """A training, ready to run: what `fit` makes of its arguments.

    Attributes:
        model, optimizer: Trained in place; on one device, as is `data`.
        stop: Steps after which to leave off, as if interrupted; schedules still see the whole
            length.
        precision: "float32", or "bf16" for autocast of the forward pass.
        ranks: In a distributed run, which share of each batch is ours.
        forward: What gives the outputs, if it is not the model itself (`DistributedDataParallel`
            around it).
        Others: As the arguments of `fit`.
    """

    def run(self, standing: Standing | None = None, *, show: Progress | None = None) -> Fitted:
        """Train to the end, from the beginning or from where a training was left.

        To resume, give model and optimizer their states of that moment, and its
        `Moment.standing()`.
        """
        with (
            flushed_denormals(),
            keep_modes(self.model),
            keep_rates(self.optimizer, standing),
        ):
            return Running(self, standing, show or Progress()).run()


PRECISIONS = ("float32", "bf16")


class Settings(TypedDict, total=False):
    """The options of a training beside its model, data and optimizer; defaults as in `Loop`."""

    loss: Loss
    batch: int
    drop_last: bool
    schedule: Schedule
    callbacks: Sequence[Callback]
    augment: Augment | None
    generator: torch.Generator | None
    evaluate_every: int
    precision: str


def fit_(
    model: nn.Module,
    data: Dataset,
    *,
    optimizer: Optimizer,
    length: Step | str | int = "160ep",
    device: torch.device | str | None = None,
    verbose: bool = True,
    **settings: Unpack[Settings],
) -> Fitted:
    """Train the model in place.

    Args:
        optimizer: over the model's parameters, any that steps without a closure. Its learning rates
            are the base of the schedule and are put back at the end, so that a second call starts
            anew.
        length: "160ep" or "2000it"; a run may end within an epoch.
        device: where to train; the model is moved there and stays. By default where it is.
        verbose: a progress bar on a terminal, one line per epoch otherwise.
        loss: mean loss of `(outputs, labels)`; cross-entropy by default.
        batch, drop_last: examples a step (128), and whether a shorter last batch is left out.
        schedule: `clock -> factor` on the learning rates, such as `cosine()` or `step_decay()`.
        callbacks: functions of a `Moment`, called in order after every step. A torch scheduler fits
            in as `lambda moment: scheduler.step()`.
        augment: function on the images of a batch, such as `data.augment`.
        generator: order of the examples and augmentation; PyTorch's global one when left out.
        evaluate_every: epochs between two test evaluations (the last epoch always has one); 0 for
            never.
        precision: "float32", or "bf16" for autocast of the forward pass.

    Raises:
        TrainingError: the loss became NaN or infinite; the message names the step.
    """
    target = device_of(model) if device is None else usable_device(device)
    for name in settings.keys() - Settings.__annotations__.keys():
        known = ("length", "device", "verbose", *Settings.__annotations__)
        raise ArgumentError(unknown("argument of fit_", name, known))
    if (precision := settings.get("precision", "float32")) not in PRECISIONS:
        raise ArgumentError(unknown("precision", precision, PRECISIONS))
    loop = Loop(model=model, data=data, optimizer=optimizer, length=length, **settings)
    # Read before the model is moved: an invalid length must change nothing.
    total = loop.total
    model.to(target)
    with progress(total, verbose=verbose) as show:
        return replace(loop, data=data.to(target)).run(show=show)


# Whether the tensors of a file fit a model; everything wrong in one error.


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The tensors of a file by name, and the text its writer left with them."""

    tensors: dict[str, Tensor]
    notes: dict[str, str]


def check_fit(model: nn.Module, held: Checkpoint, path: str | Path) -> None:
    """Raise one error that lists whatever keeps these tensors out of the model; the model may be on
    the meta device.
    """
    tied = aliases(model)
    problems = _problems(
        wanted(model),
        # A file may hold a tied weight under each of its names.
        {name: value for name, value in held.tensors.items() if name not in tied},
    )
    if problems:
        raise DataError(f"{path} does not fit {type(model).__name__}: {'; '.join(problems)}.")


def wanted(model: nn.Module) -> dict[str, Tensor]:
    tied = aliases(model)
    return {name: value for name, value in model.state_dict().items() if name not in tied}


def _problems(wanted: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> list[str]:
    missing = [name for name in wanted if name not in held]
    unexpected = [name for name in held if name not in wanted]
    problems = [_names_text("missing", missing), _names_text("unexpected", unexpected)]
    for name in wanted.keys() & held.keys():
        ours, theirs = wanted[name], held[name]
        if ours.shape != theirs.shape:
            problems.append(
                f"{name!r} is {list(theirs.shape)} in the file and {list(ours.shape)} in the model"
            )
        # Another float width is converted; integers in place of floats are another
        # model.
        elif ours.is_floating_point() != theirs.is_floating_point():
            problems.append(f"{name!r} is {theirs.dtype} in the file and {ours.dtype} in the model")
    return sorted(problem for problem in problems if problem)


def _names_text(what: str, names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{what} {', '.join(map(repr, names[:5]))}{more}" if names else ""
