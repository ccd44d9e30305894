"""The losses of one epoch: their mean, and the first that is no number."""

import math

import torch
from torch import Tensor

from secateurs.errors import TrainingError

LOOK = 50
"""Steps between two looks on an accelerator, where looking means waiting."""


class Losses:
    """The losses of one epoch; the first that is not finite ends the run and is named by its step.

    On the CPU each loss is looked at before the step is taken, so that the weights stay as they
    were. On an accelerator looking means waiting, so it happens every 50 steps.
    """

    def __init__(
        self,
        *,
        iteration: int,
        per_epoch: int,
        total: int,
        done: tuple[float, int] = (0.0, 0),
    ) -> None:
        self.iteration, self.per_epoch, self.total = iteration, per_epoch, total
        self.sum, self.examples = done
        self.rate = 0.0
        self.pending: list[tuple[Tensor, int]] = []

    def add(self, loss: Tensor, examples: int) -> None:
        """The mean loss of the next step's batch."""
        self.iteration += 1
        self.pending.append((loss, examples))
        if loss.device.type == "cpu" or len(self.pending) == LOOK:
            self.look()

    def mean(self) -> float:
        """Mean over the examples of the epoch."""
        self.look()
        return self.sum / max(1, self.examples)

    def look(self) -> None:
        """Take in what is pending."""
        if not self.pending:
            return
        # One transfer for all that is pending.
        values = (
            torch.stack([loss for loss, _ in self.pending]).tolist()
            if len(self.pending) > 1
            else None
        )
        for back, (loss, examples) in enumerate(self.pending):
            value = float(loss) if values is None else values[back]
            if not math.isfinite(value):
                raise self._error(
                    # The step that was broken, though it is noticed up to 50 steps
                    # later.
                    value,
                    self.iteration - len(self.pending) + back + 1,
                )
            self.sum += value * examples
            self.examples += examples
        self.pending.clear()

    def _error(self, value: float, step: int) -> TrainingError:
        return TrainingError(
            f"the loss is {value} at step {step} of {self.total} (epoch "
            f"{(step - 1) // self.per_epoch + 1}, "
            f"learning rate {self.rate:.3g}). Lower the learning rate, warm it up, or look for "
            f"NaN in the data."
        )
