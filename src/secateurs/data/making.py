"""Data sets made of tensors and of bytes, normalised where that is asked."""

from dataclasses import replace

import torch
from torch import Tensor

from secateurs.data.dataset import Dataset, check_splits


def from_tensors(
    name: str,
    *,
    train_x: Tensor,
    train_y: Tensor,
    test_x: Tensor,
    test_y: Tensor,
    classes: int | None = None,
) -> Dataset:
    """A data set from your own tensors, taken as they are."""
    # Before the first number is read of them: tensors in another order, lists or arrays would
    # fail somewhere inside of torch.
    check_splits(
        name, train=(train_x, train_y), test=(test_x, test_y), classes=classes
    )
    if classes is None:
        classes = int(train_y.max()) + 1
    # correction=0: these are all pixels there are, no sample of more.
    std, mean = torch.std_mean(train_x, dim=(0, 2, 3), correction=0)
    channels = train_x.shape[1]
    return Dataset(
        name=name,
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        classes=classes,
        mean=tuple(mean.tolist()),
        std=tuple(std.tolist()),
        offset=(0.0,) * channels,
        scale=(1.0,) * channels,
    )


def from_pixels(
    name: str,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    classes: int,
    normalise: bool,
) -> Dataset:
    """A data set from bytes: pixels scaled to [0, 1] and, if asked, normalised per channel by the
    training set.
    """
    plain = from_tensors(
        name,
        train_x=train[0].float().div_(255),
        train_y=train[1].long(),
        test_x=test[0].float().div_(255),
        test_y=test[1].long(),
        classes=classes,
    )
    return normalised(plain) if normalise else plain


def normalised(data: Dataset, *, channels: int | None = None) -> Dataset:
    """Channels (the first ones, or all) less their mean, over their standard deviation, in place:
    the images must have been made for this data set.
    """
    # A channel that never changes has no deviation to divide by.
    offset, scale = torch.tensor(data.mean), torch.tensor(data.std).clamp_min(1e-6)
    if channels is not None:
        offset[channels:], scale[channels:] = 0.0, 1.0
    # In place: a copy of Tiny ImageNet would take another 5 GB.
    for x in (data.train_x, data.test_x):
        x.sub_(offset.view(-1, 1, 1)).div_(scale.view(-1, 1, 1))
    mean, std = (
        (torch.tensor(data.mean) - offset) / scale,
        torch.tensor(data.std) / scale,
    )
    means, stds, offsets, scales = (
        tuple(values.tolist()) for values in (mean, std, offset, scale)
    )
    return replace(data, mean=means, std=stds, offset=offsets, scale=scales)
