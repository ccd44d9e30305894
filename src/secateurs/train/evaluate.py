"""Loss and accuracy of a model on one split of a data set."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from secateurs.data.dataset import Dataset, Split
from secateurs.errors import ArgumentError

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
    device: torch.device | str | None = None,
) -> Evaluation:
    """Run the model over a split in evaluation mode; its training modes are as before afterwards.

    Ties between outputs go to the lowest class. Examples go to `device`, by default that of the
    model.
    """
    if not isinstance(data, Dataset):
        raise ArgumentError(
            f"data is a {type(data).__name__}, not a secateurs.data.Dataset: data.from_tensors(...)"
            " makes one of tensors, data.load(name) reads one."
        )
    target = usable_device(device) if device is not None else device_of(model)
    total, correct = 0.0, 0
    with kept_modes(model), torch.no_grad():
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
    """What to say of a network whose outputs are no tensor."""
    return (
        f"the network returns a {type(outputs).__name__}, not one tensor of logits: wrap it in a"
        " module whose forward returns the tensor."
    )


@contextmanager
def kept_modes(model: nn.Module) -> Iterator[None]:
    """Whatever happens inside, every module is in its own training mode again afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def device_of(model: nn.Module) -> torch.device:
    """The device of the first parameter; the CPU for a model without any."""
    return next(
        (parameter.device for parameter in model.parameters()), torch.device("cpu")
    )


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
            f"there is no device {str(device)!r} here: {reason}."
        ) from None
