"""`fit`: train a model in place, with any torch optimizer, schedules and callbacks as functions."""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer

from secateurs.data.base import Dataset
from secateurs.step import Step
from secateurs.train.evaluate import Loss, device_of, usable_device
from secateurs.train.loop import Augment, Fitted, Loop
from secateurs.train.moment import Callback
from secateurs.train.progress import progress
from secateurs.train.schedules import Schedule, constant


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
            are the base of the schedule and are put back at the end, so that a second call starts
            anew.
        loss: mean loss of `(outputs, labels)`.
        length: "160ep" or "2000it"; a run may end within an epoch.
        schedule: `clock -> factor` on the learning rates, such as `cosine()` or `step_decay()`.
        callbacks: functions of a `Moment`, called in order after every step. A torch scheduler fits
            in as `lambda moment: scheduler.step()`.
        augment: function on the images of a batch, such as `data.augment`.
        generator: order of the examples and augmentation; PyTorch's global one when left out.
        device: where to train; the model is moved there and stays. By default where it is.
        evaluate_every: epochs between two test evaluations (the last epoch always has one); 0 for
            never.
        verbose: a progress bar on a terminal, one line per epoch otherwise.

    Raises:
        TrainingError: the loss became NaN or infinite; the message names the step.
    """
    target = device_of(model) if device is None else usable_device(device)
    loop = Loop(
        model=model,
        data=data,
        optimizer=optimizer,
        loss=loss,
        length=length,
        batch=batch,
        drop_last=drop_last,
        schedule=schedule,
        callbacks=callbacks,
        augment=augment,
        generator=generator,
        evaluate_every=evaluate_every,
    )
    total = loop.total
    model.to(target)
    with progress(total, verbose=verbose) as show:
        return replace(loop, data=data.to(target)).run(show=show)
