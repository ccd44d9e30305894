"""The training loop itself: one for every training here, resumable at any step."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs.data.base import Dataset
from secateurs.errors import ArgumentError
from secateurs.step import Step
from secateurs.train.denormals import flushed_denormals
from secateurs.train.evaluate import Loss, device_of, evaluate, kept_modes
from secateurs.train.losses import Losses
from secateurs.train.moment import Callback, Epoch, Moment, Standing
from secateurs.train.progress import Progress
from secateurs.train.ranks import ALONE, Ranks
from secateurs.train.schedules import Clock, Schedule, constant


class Augment(Protocol):
    """`(images, generator=...) -> images`, such as `data.augment`."""

    def __call__(self, x: Tensor, *, generator: torch.Generator | None) -> Tensor: ...


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
            (
                e.test_accuracy
                for e in reversed(self.history)
                if e.test_accuracy is not None
            ),
            None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
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
        count = (
            examples // self.batch
            if self.drop_last
            else -(-examples // max(1, self.batch))
        )
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

    def run(
        self, standing: Standing | None = None, *, show: Progress | None = None
    ) -> Fitted:
        """Train to the end, from the beginning or from where a training was left.

        To resume, give model and optimizer their states of that moment, and its
        `Moment.standing()`.
        """
        with (
            flushed_denormals(),
            kept_modes(self.model),
            _kept_rates(self.optimizer, standing),
        ):
            return _Running(self, standing, show or Progress()).run()


class _Running:
    """A loop under way."""

    def __init__(self, loop: Loop, standing: Standing | None, show: Progress) -> None:
        self.loop, self.show = loop, show
        self.per_epoch, self.total = loop.per_epoch, loop.total
        self.end = self.total if loop.stop is None else min(self.total, loop.stop)
        self.rates = standing.rates if standing else _rates(loop.optimizer)
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
        for iteration, (x, y) in enumerate(
            self._batches(done, last - first), start=first + done
        ):
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
        """Open the books of an epoch, as they stood if the training was left in it; returns its
        batches done.
        """
        loop, left = self.loop, self.left
        done, sums = (
            (left.iteration - first, (left.loss_sum, left.examples))
            if left
            else (0, (0.0, 0))
        )
        self.losses = Losses(
            iteration=first + done,
            per_epoch=self.per_epoch,
            total=self.total,
            done=sums,
        )
        if left is not None:
            _put(loop.generator, left.order)
        self.order = _state(loop.generator)
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
            _put(loop.generator, left.drawn)
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
            loss = loop.loss((loop.forward or loop.model)(x), y)
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
            drawn=_state(self.loop.generator),
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
        for group, base in zip(
            self.loop.optimizer.param_groups, self.rates, strict=True
        ):
            group["lr"] = base * factor
        # Remembered for the message of a loss that becomes NaN.
        self.losses.rate = float(self.loop.optimizer.param_groups[0]["lr"])

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.loop.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)


def _rates(optimizer: Optimizer) -> tuple[float, ...]:
    return tuple(float(group["lr"]) for group in optimizer.param_groups)


@contextmanager
def _kept_rates(optimizer: Optimizer, standing: Standing | None) -> Iterator[None]:
    rates = (
        [group["lr"] for group in optimizer.param_groups]
        if standing is None
        else list(standing.rates)
    )
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def _state(generator: torch.Generator | None) -> Tensor:
    return torch.get_rng_state() if generator is None else generator.get_state()


def _put(generator: torch.Generator | None, state: Tensor) -> None:
    (generator or torch.default_generator).set_state(state)
