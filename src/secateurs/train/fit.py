"""`fit`: train a model in place, with any torch optimizer, schedules and callbacks as functions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypedDict, Unpack

import torch
from torch import nn
from torch.optim import Optimizer

from secateurs.data.dataset import Dataset
from secateurs.errors import ArgumentError
from secateurs.naming import former
from secateurs.registry import unknown
from secateurs.step import Step
from secateurs.train.evaluate import Loss, device_of, usable_device
from secateurs.train.loop import Loop
from secateurs.train.moment import Callback, Fitted
from secateurs.train.progress import progress
from secateurs.train.schedules import Schedule
from secateurs.train.training import Augment


class Settings(TypedDict, total=False):
    """What a training may be told beside its model, data and optimizer; defaults as in `Loop`."""

    loss: Loss
    batch: int
    drop_last: bool
    schedule: Schedule
    callbacks: Sequence[Callback]
    augment: Augment | None
    generator: torch.Generator | None
    evaluate_every: int


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

    Raises:
        TrainingError: the loss became NaN or infinite; the message names the step.
    """
    target = device_of(model) if device is None else usable_device(device)
    for name in settings.keys() - Settings.__annotations__.keys():
        known = ("length", "device", "verbose", *Settings.__annotations__)
        raise ArgumentError(unknown("argument of fit_", name, known))
    loop = Loop(
        model=model, data=data, optimizer=optimizer, length=length, **settings
    )
    # Asked for before the model is moved: a length that cannot be read must change
    # nothing.
    total = loop.total
    model.to(target)
    with progress(total, verbose=verbose) as show:
        return replace(loop, data=data.to(target)).run(show=show)


fit = former("fit", fit_)
"""`fit_` under its name of before."""
