"""A data set is five tensors and a name. Also: random augmentation of images, and the table of data
sets by name.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from secateurs.base.registry import Registry
from secateurs.errors import ArgumentError, DataError

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
        check_splits(
            self.name,
            train=(self.train_x, self.train_y),
            test=(self.test_x, self.test_y),
            classes=self.classes,
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
        return (self.train_x, self.train_y) if split == "train" else (self.test_x, self.test_y)

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
            key: getattr(self, key).to(device) for key in ("train_x", "train_y", "test_x", "test_y")
        }
        return replace(self, **tensors)


def check_splits(
    name: str,
    *,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    classes: int | None,
) -> None:
    """Refuse impossible images and labels, listing everything that is wrong; without `classes`, any
    class number is accepted.
    """
    splits = (("train", *train), ("test", *test))
    problems = [text for split in splits for text in _problems(*split, classes)]
    # Channels are compared once both are known to be images.
    if not problems and train[0].shape[1] != test[0].shape[1]:
        problems = [f"train_x has {train[0].shape[1]} channels and test_x {test[0].shape[1]}"]
    if problems:
        raise DataError(f"{name} is not a usable data set: {'; '.join(problems)}.")


def _problems(split: str, x: Tensor, y: Tensor, classes: int | None) -> list[str]:
    found = []
    if not isinstance(x, Tensor) or x.ndim != 4 or not x.is_floating_point() or not x.numel():
        found.append(
            f"{split}_x must hold floating-point images [N, channels, height, width], not"
            f" {kind_of(x)}"
        )
    # Labels are counted against images only where there are images.
    count = len(x) if not found else None
    if (
        not isinstance(y, Tensor)
        or y.dtype != torch.int64
        or y.ndim != 1
        or not len(y)
        or (count is not None and len(y) != count)
    ):
        numbers = "class numbers" if count is None else f"{count} class numbers"
        found.append(f"{split}_y must hold {numbers} (int64), not {kind_of(y)}")
        return found
    low, high = int(y.min()), int(y.max())
    if low < 0 or (classes is not None and high >= classes):
        allowed = "0 and up" if classes is None else f"0 to {classes - 1}"
        found.append(f"{split}_y holds classes from {low} to {high}, outside {allowed}")
    return found


def kind_of(x: object) -> str:
    """A description of a value for messages: a tensor by dtype and shape, anything else by its
    type."""
    if not isinstance(x, Tensor):
        return f"a {type(x).__name__}"
    return f"{x.dtype} of shape {tuple(x.shape)}"


# Augmentation on whole batches: flips, shifts and rotations as functions `(images, generator) ->
# images`.


def augment(x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    """The augmentation of the papers for colour images: flips, shifts up to 12.5 %, rotations up to
    15°.

    `x` is [N, channels, height, width]; pixels that come from outside are zero. Each image is drawn
    on its own.
    """
    return rotate(shift(flip(x, generator=generator), generator=generator), generator=generator)


def flip(x: Tensor, *, share: float = 0.5, generator: torch.Generator | None = None) -> Tensor:
    """Mirror each image left to right with probability `share`."""
    turned = _uniform(len(x), x, generator) < share
    return torch.where(turned.view(-1, 1, 1, 1), x.flip(-1), x)


def shift(x: Tensor, *, most: float = 0.125, generator: torch.Generator | None = None) -> Tensor:
    """Move each image by whole pixels, uniformly up to `most` of its side in both directions."""
    if not 0 <= most < 1:
        raise ArgumentError(
            f"a shift is a fraction of the side, at least 0 and below 1, not {most}."
        )
    height, width = x.shape[-2:]
    down = _rows(height, int(most * height), x, generator)
    right = _rows(width, int(most * width), x, generator)
    # One row and one column of zeros: the place "outside".
    padded = F.pad(x, (0, 1, 0, 1))
    moved = padded.gather(2, down.view(len(x), 1, height, 1).expand(-1, x.shape[1], -1, width + 1))
    return moved.gather(3, right.view(len(x), 1, 1, width).expand(-1, x.shape[1], height, -1))


def rotate(x: Tensor, *, degrees: float = 15.0, generator: torch.Generator | None = None) -> Tensor:
    """Turn each image about its centre by an angle uniform on ±`degrees`, interpolating
    linearly.
    """
    angle = (2 * _uniform(len(x), x, generator) - 1) * math.radians(degrees)
    cos, sin = angle.cos(), angle.sin()
    # Grid coordinates run over ±1 on both axes, whatever the sides.
    aspect = x.shape[-2] / x.shape[-1]
    zero = torch.zeros_like(cos)
    rows = torch.stack([cos, -sin * aspect, zero, sin / aspect, cos, zero], dim=1).view(-1, 2, 3)
    grid = F.affine_grid(rows.to(x.dtype), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _rows(side: int, most: int, x: Tensor, generator: torch.Generator | None) -> Tensor:
    """For each image the source row of every row after a random shift; `side` stands for
    outside.
    """
    moved = (_uniform(len(x), x, generator) * (2 * most + 1)).floor().long() - most
    source = torch.arange(side, device=x.device) - moved.view(-1, 1)
    return torch.where((source >= 0) & (source < side), source, side)


def _uniform(count: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform numbers on [0, 1), drawn on the generator's device and moved to the images'."""
    device = like.device if generator is None else generator.device
    return torch.rand(count, generator=generator, device=device).to(like.device)


# A data set is five tensors and a name; `load` finds one by name.


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a data set comes from: `read(folder or None, download)` returns it or raises
    `DataError`. `shape` is that of one image.
    """

    read: Callable[[Path | None, bool], Dataset]
    summary: str
    shape: tuple[int, ...] | None = None


DATA: Registry[Source] = Registry("data set")


def load(name: str, *, root: str | Path | None = None, download: bool = False) -> Dataset:
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
    return DATA[name].read(None if root is None else Path(root).expanduser(), download)


# Data sets made of tensors and of bytes, normalised where that is asked.


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
    check_splits(name, train=(train_x, train_y), test=(test_x, test_y), classes=classes)
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
    return standardise(plain) if normalise else plain


def standardise(data: Dataset, *, channels: int | None = None) -> Dataset:
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
    means, stds, offsets, scales = (tuple(values.tolist()) for values in (mean, std, offset, scale))
    return replace(data, mean=means, std=stds, offset=offsets, scale=scales)
