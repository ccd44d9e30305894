"""Loss and accuracy of a model on one split of a data set."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from secateurs.errors import ArgumentError, TrainingError
from secateurs_lab.data.dataset import Dataset, Split

Loss = Callable[[Tensor, Tensor], Tensor]
"""`(outputs, labels) -> mean loss`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Mean loss, and the share of examples whose largest output is the label's."""

    loss: float
    accuracy: float
    correct: int
    examples: int


def evaluate(
    model: nn.Module,
    data: Dataset,
    *,
    split: Split = "test",
    loss: Loss = F.cross_entropy,
    batch: int = 1000,
) -> Evaluation:
    """Run the model over a split in evaluation mode; its training modes are as before afterwards.

    Ties between outputs go to the lowest class. Examples go to the device of the model.
    """
    if not isinstance(data, Dataset):
        raise ArgumentError(
            f"data is a {type(data).__name__}, not a lab.data.Dataset: data.from_tensors(...)"
            " makes one of tensors, data.load(name) reads one."
        )
    target = device_of(model)
    total, correct = 0.0, 0
    with keep_modes(model), torch.no_grad():
        model.eval()
        for x, y in data.batches(batch, shuffle=False, split=split):
            x, y = x.to(target), y.to(target)
            outputs = model(x)
            if not isinstance(outputs, Tensor):
                raise ArgumentError(not_logits(outputs))
            # The loss is a mean over its batch, and the last batch may be shorter.
            total += float(loss(outputs, y)) * len(y)
            correct += int((outputs.argmax(1) == y).sum())
    examples = len(data.split(split)[1])
    return Evaluation(
        loss=total / examples,
        accuracy=correct / examples,
        correct=correct,
        examples=examples,
    )


def not_logits(outputs: object) -> str:
    """The message for a network that does not return a tensor."""
    return (
        f"the network returns a {type(outputs).__name__}, not one tensor of logits: wrap it in a"
        " module whose forward returns the tensor."
    )


@contextmanager
def keep_modes(model: nn.Module) -> Iterator[None]:
    """Whatever happens inside, every module is in its own training mode again afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def device_of(model: nn.Module) -> torch.device:
    """The device of the first parameter; the CPU for a model without any."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def fastest_device() -> str:
    """A GPU where there is one, else the CPU."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def usable_device(device: torch.device | str) -> torch.device:
    """The device, if this machine has it."""
    try:
        # Trying is the only test that holds for every backend; "cuda" becomes "cuda:0"
        # on the way.
        return torch.empty(1, device=device).device
    except (
        RuntimeError,
        AssertionError,
    ) as error:
        # Torch asserts that it was built for the device.
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ArgumentError(
            f"there is no device {str(device)!r} on this machine: {reason}."
        ) from None


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
        """Read the pending losses."""
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
