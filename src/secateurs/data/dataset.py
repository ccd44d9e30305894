"""A data set is five tensors and a name."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

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


def check_splits(
    name: str,
    *,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    classes: int | None,
) -> None:
    """Refuse images and labels that no data set can have, with everything that is wrong; without
    `classes` any number of a class will do.
    """
    splits = (("train", *train), ("test", *test))
    problems = [text for split in splits for text in _problems(*split, classes)]
    # Channels are compared once both are known to be images.
    if not problems and train[0].shape[1] != test[0].shape[1]:
        problems = [
            f"train_x has {train[0].shape[1]} channels and test_x {test[0].shape[1]}"
        ]
    if problems:
        raise DataError(f"{name} is no usable data set: {'; '.join(problems)}.")


def _problems(split: str, x: Tensor, y: Tensor, classes: int | None) -> list[str]:
    found = []
    if (
        not isinstance(x, Tensor)
        or x.ndim != 4
        or not x.is_floating_point()
        or not x.numel()
    ):
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
        found.append(
            f"{split}_y holds classes from {low} to {high}, outside {allowed}"
        )
    return found


def kind_of(x: object) -> str:
    """What somebody gave, in words: a tensor by dtype and shape, anything else by its type."""
    if not isinstance(x, Tensor):
        return f"a {type(x).__name__}"
    return f"{x.dtype} of shape {tuple(x.shape)}"
