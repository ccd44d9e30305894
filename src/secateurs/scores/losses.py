"""The loss of each batch: the user's own, or the one a model computes itself."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError
from secateurs.scores.batches import Batch, logits
from secateurs.scores.calling import call
from secateurs.scores.task import Loss, Task


def losses(task: Task, *, temperature: float = 1.0) -> Iterator[tuple[int, Tensor]]:
    """Size and mean loss of each batch, the outputs divided by the temperature."""
    found = False
    for number, batch in enumerate(task.batches()):
        found = True
        yield batch.size, _loss(task, batch, number, temperature)
    if not found:
        raise ArgumentError(
            "the data has no batch; a loader that was read to its end must be made anew."
        )


@torch.no_grad()
def mean_loss(model: nn.Module, data: Any, loss: Loss | None) -> float:
    """The loss over all examples, in eval mode; every module is left in the mode it was in."""
    task = Task(
        model=model, parameters=dict(model.named_parameters()), data=data, loss=loss
    )
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        found = [(size, float(value)) for size, value in losses(task)]
    finally:
        for module, training in modes:
            module.training = training
    return sum(size * value for size, value in found) / sum(size for size, _ in found)


def _loss(task: Task, batch: Batch, number: int, temperature: float) -> Tensor:
    if task.loss is None:
        return _own_loss(task, batch, number, temperature)
    if batch.targets is None:
        raise ArgumentError(
            f"batch {number} has no targets, and the loss needs them: give (x, y) as a tuple "
            "(a list is taken as a list of batches)."
        )
    output = logits(call(task.model, batch.inputs))
    output = output / temperature if temperature != 1 else output
    try:
        value = task.loss(output, batch.targets)
    # A RuntimeError too, but no fault of the targets.
    except torch.OutOfMemoryError:
        raise
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        # Torch names neither the batch nor what it got: most often the targets do not fit.
        raise ArgumentError(
            f"the loss fails on batch {number}, outputs {_told(output)}, targets"
            f" {_told(batch.targets)}: {str(error).splitlines()[0]}"
        ) from error
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ArgumentError(
            f"loss returned {_told(value)}; it must average over the batch to one number."
        )
    return value.reshape(())


def _own_loss(task: Task, batch: Batch, number: int, temperature: float) -> Tensor:
    """The loss a model of Hugging Face computes itself when `labels` are among its inputs."""
    if not isinstance(batch.inputs, Mapping) or batch.targets is None:
        raise ArgumentError(
            f"batch {number} is no dict with 'labels', from which a model computes its own loss:"
            " give loss=, a function loss(output, y) that averages over the batch."
        )
    if temperature != 1:
        raise ArgumentError(
            "a temperature divides outputs, so it needs loss= of your own."
        )
    output = call(task.model, {**batch.inputs, "labels": batch.targets})
    value = (
        output.get("loss")
        if isinstance(output, Mapping)
        else getattr(output, "loss", None)
    )
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ArgumentError(
            f"{type(task.model).__name__} returned no loss for its labels: give loss=."
        )
    return value.reshape(())


def _told(value: object) -> str:
    return (
        f"a tensor of shape {tuple(value.shape)}"
        if isinstance(value, Tensor)
        else f"a {type(value).__name__}"
    )
