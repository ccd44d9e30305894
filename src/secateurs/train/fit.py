"""The training loop: batches from tensors in memory, any torch optimizer, schedules and callbacks
as functions.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs.data.base import Dataset
from secateurs.errors import ArgumentError, TrainingError
from secateurs.prune.step import Step
from secateurs.train.denormals import flushed_denormals
from secateurs.train.evaluate import Loss, device_of, evaluate, kept_modes, usable_device
from secateurs.train.progress import Progress, progress
from secateurs.train.schedules import Clock, Schedule, constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a callback sees after each optimizer step; `clock` counts the step just done."""

    model: nn.Module
    optimizer: Optimizer
    clock: Clock
    loss: Tensor


Callback: TypeAlias = Callable[[Moment], None]
"""Called after every optimizer step; see `every` for rarer calls."""


class Augment(Protocol):
    """`(images, generator=...) -> images`, such as `data.augment`."""

    def __call__(self, x: Tensor, *, generator: torch.Generator | None) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One line of history: the mean training loss of the epoch and, where evaluated, the test
    figures after it.
    """

    epoch: int
    iteration: int
    loss: float
    test_loss: float | None
    test_accuracy: float | None
    learning_rate: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A finished run."""

    history: tuple[Epoch, ...]
    iterations: int
    seconds: float

    @property
    def accuracy(self) -> float | None:
        """The last test accuracy that was measured, as a share."""
        return next(
            (e.test_accuracy for e in reversed(self.history) if e.test_accuracy is not None), None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Everything the loop needs, resolved."""

    model: nn.Module
    data: Dataset
    optimizer: Optimizer
    loss: Loss
    batch: int
    drop_last: bool
    schedule: Schedule
    callbacks: Sequence[Callback]
    augment: Augment | None
    generator: torch.Generator | None
    per_epoch: int
    total: int
    evaluate_every: int
    show: Progress


def fit(
    model: nn.Module,
    data: Dataset,
    *,
    optimizer: Optimizer,
    loss: Loss = F.cross_entropy,
    length: Step | str | int = "160ep",
    batch: int = 128,
    drop_last: bool = False,
    schedule: Schedule = constant,
    callbacks: Sequence[Callback] = (),
    augment: Augment | None = None,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    evaluate_every: int = 1,
    verbose: bool = True,
) -> Fitted:
    """Train the model in place.

    Args:
        optimizer: over the model's parameters, any that steps without a closure. Its learning rates
        are the base of the
            schedule and are put back at the end, so that a second call starts anew.
        loss: mean loss of `(outputs, labels)`. length: "160ep" or "2000it"; a run may end within an
        epoch. schedule: `clock -> factor` on the learning rates, such as `cosine()` or
        `step_decay()`. callbacks: functions of a `Moment`, called in order after every step. A
        torch scheduler fits in as
            `lambda moment: scheduler.step()`.
        augment: function on the images of a batch, such as `data.augment`. generator: order of the
        examples and augmentation; PyTorch's global one when left out. device: where to train; the
        model is moved there and stays. By default where it is. evaluate_every: epochs between two
        test evaluations (the last epoch always has one); 0 for never. verbose: a progress bar on a
        terminal, one line per epoch otherwise.

    Raises:
        TrainingError: the loss became NaN or infinite; the message names the step.
    """
    target = device_of(model) if device is None else usable_device(device)
    examples = len(data.train_y)
    per_epoch = examples // batch if drop_last else -(-examples // max(1, batch))
    if batch < 1 or per_epoch < 1:
        raise ArgumentError(
            f"batches of {batch} cannot be taken from {examples} examples; choose 1 to {examples}."
        )
    total = Step.parse(length).iterations(per_epoch)
    model.to(target)
    with (
        progress(total, verbose=verbose) as show,
        flushed_denormals(),
        kept_modes(model),
        _kept_rates(optimizer),
    ):
        return _fit(
            _Run(
                model=model,
                data=data.to(target),
                optimizer=optimizer,
                loss=loss,
                batch=batch,
                drop_last=drop_last,
                schedule=_on_rates(optimizer, schedule),
                callbacks=callbacks,
                augment=augment,
                generator=generator,
                per_epoch=per_epoch,
                total=total,
                evaluate_every=evaluate_every,
                show=show,
            )
        )


def every(step: Step | str | int, callback: Callback) -> Callback:
    """The callback, called only at multiples of `step`: `every("1ep", log)`."""
    period = Step.parse(step)

    def called(moment: Moment) -> None:
        if moment.clock.iteration % max(1, period.iterations(moment.clock.per_epoch)) == 0:
            callback(moment)

    return called


def _fit(run: _Run) -> Fitted:
    start, history = perf_counter(), []
    for epoch in range(math.ceil(run.total / run.per_epoch)):
        history.append(_epoch(run, epoch))
        run.show.epoch(history[-1])
    return Fitted(history=tuple(history), iterations=run.total, seconds=perf_counter() - start)


def _epoch(run: _Run, epoch: int) -> Epoch:
    start, first = perf_counter(), epoch * run.per_epoch
    last = min(first + run.per_epoch, run.total)
    losses = _Losses(run, first)
    run.model.train()
    batches = run.data.batches(run.batch, generator=run.generator, drop_last=run.drop_last)
    for iteration, (x, y) in enumerate(islice(batches, last - first), start=first):
        run.schedule(Clock(iteration, run.per_epoch, run.total))
        _step(run, x, y, losses)
        run.show.step(iteration + 1)
    loss = losses.mean()
    tested = run.evaluate_every and ((epoch + 1) % run.evaluate_every == 0 or last == run.total)
    test = evaluate(run.model, run.data, loss=run.loss) if tested else None
    return Epoch(
        epoch=epoch + 1,
        iteration=last,
        loss=loss,
        test_loss=test.loss if test else None,
        test_accuracy=test.accuracy if test else None,
        learning_rate=float(run.optimizer.param_groups[0]["lr"]),
        seconds=perf_counter() - start,
    )


def _step(run: _Run, x: Tensor, y: Tensor, losses: "_Losses") -> None:
    if run.augment is not None:
        x = run.augment(x, generator=run.generator)
    run.optimizer.zero_grad(set_to_none=True)
    loss = run.loss(run.model(x), y)
    losses.add(loss.detach(), len(y))
    loss.backward()  # type: ignore[no-untyped-call]
    run.optimizer.step()
    clock = Clock(losses.iteration, run.per_epoch, run.total)
    for callback in run.callbacks:
        callback(Moment(model=run.model, optimizer=run.optimizer, clock=clock, loss=loss.detach()))


class _Losses:
    """The losses of one epoch; the first that is not finite ends the run and is named by its step.

    On the CPU each loss is looked at before the step is taken, so that the weights stay as they
    were. On an accelerator looking means waiting, so it happens every 50 steps.
    """

    def __init__(self, run: _Run, iteration: int) -> None:
        self.run = run
        self.iteration = iteration
        self.sum, self.examples = 0.0, 0
        self.pending: list[tuple[Tensor, int]] = []

    def add(self, loss: Tensor, examples: int) -> None:
        self.iteration += 1
        self.pending.append((loss, examples))
        if loss.device.type == "cpu" or len(self.pending) == 50:
            self.look()

    def mean(self) -> float:
        self.look()
        return self.sum / max(1, self.examples)

    def look(self) -> None:
        if not self.pending:
            return
        values = (
            torch.stack([loss for loss, _ in self.pending]).tolist()
            if len(self.pending) > 1
            else None
        )
        for back, (loss, examples) in enumerate(self.pending):
            value = float(loss) if values is None else values[back]
            if not math.isfinite(value):
                raise self._error(value, self.iteration - len(self.pending) + back + 1)
            self.sum += value * examples
            self.examples += examples
        self.pending.clear()

    def _error(self, value: float, step: int) -> TrainingError:
        rate = float(self.run.optimizer.param_groups[0]["lr"])
        return TrainingError(
            f"the loss is {value} at step {step} of {self.run.total} (epoch"
            f" {(step - 1) // self.run.per_epoch + 1}, learning rate {rate:.3g}). Lower the"
            " learning rate, warm it up, or look for NaN in the data."
        )


def _on_rates(optimizer: Optimizer, schedule: Schedule) -> Schedule:
    """The schedule, which now also writes the learning rates: base · factor."""
    bases = [float(group["lr"]) for group in optimizer.param_groups]

    def scheduled(clock: Clock) -> float:
        factor = schedule(clock)
        for group, base in zip(optimizer.param_groups, bases, strict=True):
            group["lr"] = base * factor
        return factor

    return scheduled


@contextmanager
def _kept_rates(optimizer: Optimizer) -> Iterator[None]:
    rates = [group["lr"] for group in optimizer.param_groups]
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
