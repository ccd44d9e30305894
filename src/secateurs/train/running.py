"""A training under way: epochs, steps, and where it stands after each."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.train.evaluate import device_of, evaluate, not_logits
from secateurs.train.losses import Losses
from secateurs.train.moment import Epoch, Fitted, Moment, Standing
from secateurs.train.progress import Progress
from secateurs.train.schedules import Clock
from secateurs.train.states import put_, rates_of, state_of
from secateurs.train.training import Training


class Running:
    """A loop under way."""

    def __init__(
        self, loop: Training, standing: Standing | None, show: Progress
    ) -> None:
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
