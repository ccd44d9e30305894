"""A data set is five tensors and a name; `load` finds one by name."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from secateurs.errors import ArgumentError, DataError
from secateurs.registry import Registry

Split = Literal["train", "test"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset:
    """Images and labels in memory: `train_x` is [N, channels, height, width], `train_y` the class
    numbers.

    `mean` and `std` are those of `train_x` per channel, as it stands. Where channels were
    normalised, x · scale + offset gives back what they were (pixels in [0, 1]); otherwise scale is
    1 and offset 0.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    offset: tuple[float, ...]
    scale: tuple[float, ...]

    def __post_init__(self) -> None:
        problems = [*_problems(self, "train"), *_problems(self, "test")]
        if problems:
            raise DataError(
                f"{self.name} is no usable data set: {'; '.join(problems)}."
            )

    @property
    def in_channels(self) -> int:
        """Channels of an image."""
        return self.train_x.shape[1]

    @property
    def size(self) -> int:
        """Side of an image in pixels."""
        return self.train_x.shape[-1]

    def split(self, split: Split) -> tuple[Tensor, Tensor]:
        """Images and labels of one split."""
        if split not in ("train", "test"):
            raise ArgumentError(f"a split is 'train' or 'test', not {split!r}.")
        return (
            (self.train_x, self.train_y)
            if split == "train"
            else (self.test_x, self.test_y)
        )

    def batches(
        self,
        size: int,
        *,
        generator: torch.Generator | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        split: Split = "train",
        skip: int = 0,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass over a split in batches of `size`, in an order drawn from the generator, less
        the first `skip`.
        """
        if size < 1:
            raise ArgumentError(f"a batch has at least one example, not {size}.")
        x, y = self.split(split)
        count = len(y) - len(y) % size if drop_last else len(y)
        # The whole order is drawn even if the first batches are skipped: a resumed
        # epoch sees the rest of the same order.
        order = torch.randperm(len(y), generator=generator) if shuffle else None
        for start in range(skip * size, count, size):
            if order is None:
                yield x[start : start + size], y[start : start + size]
            else:
                chosen = order[start : start + size].to(y.device)
                yield x.index_select(0, chosen), y.index_select(0, chosen)

    def first(self, train: int, test: int | None = None) -> "Dataset":
        """The same set cut to its first examples; mean and standard deviation stay those of the
        whole.
        """
        test = train if test is None else test
        return replace(
            self,
            train_x=self.train_x[:train],
            train_y=self.train_y[:train],
            test_x=self.test_x[:test],
            test_y=self.test_y[:test],
        )

    def to(self, device: torch.device | str) -> "Dataset":
        """The same set on another device."""
        tensors = {
            key: getattr(self, key).to(device)
            for key in ("train_x", "train_y", "test_x", "test_y")
        }
        return replace(self, **tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a data set comes from: `read(folder or None, download)` returns it or raises
    `DataError`.
    """

    read: Callable[[Path | None, bool], Dataset]
    summary: str


DATA: Registry[Source] = Registry("data set")


def load(
    name: str, *, root: str | Path | None = None, download: bool = False
) -> Dataset:
    """A data set by name, from a folder on this machine.

    Args:
        name: one of `DATA`.
        root: the folder with its files, or the folder above. By default `$SECATEURS_DATA` or
            `~/.cache/secateurs`, and the places where Linux distributions install it.
        download: fetch missing files from the canonical place, checked against their published
            checksums. Nothing is ever fetched without it.

    Raises:
        DataError: files are missing (the message says how to get them), damaged or foreign.
        MissingExtra: an optional package is needed to read it.
    """
    return DATA[name].read(
        None if root is None else Path(root).expanduser(), download
    )


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
    if train_x.ndim != 4 or not train_x.is_floating_point() or not train_x.numel():
        raise DataError(
            "train_x must hold floating-point images [N, channels, height, width], not"
            f" {_kind(train_x)}."
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


def _problems(data: Dataset, split: Split) -> list[str]:
    x, y = data.split(split)
    if x.ndim != 4 or not x.is_floating_point() or not x.numel():
        return [
            f"{split}_x must hold floating-point images [N, channels, height, width], not"
            f" {_kind(x)}"
        ]
    if y.dtype != torch.int64 or y.shape != x.shape[:1]:
        return [f"{split}_y must hold {len(x)} class numbers (int64), not {_kind(y)}"]
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= data.classes:
        return [
            f"{split}_y holds classes from {low} to {high}, outside 0 to {data.classes - 1}"
        ]
    return []


def _kind(x: Tensor) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}"
