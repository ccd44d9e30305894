"""Tiny ImageNet: 200 classes of 64×64 JPEG images in folders. Some 5 GB in memory."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from secateurs.data.base import DATA, Source
from secateurs.data.dataset import Dataset
from secateurs.data.files import home, missing, places
from secateurs.data.making import from_pixels
from secateurs.errors import DataError, MissingExtra

FOLDER = "tiny-imagenet-200"
ADDRESS = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
SIDE = 64


def read_tiny_imagenet(root: Path | None, download: bool) -> Dataset:
    """Training images from train/<class>/images, test images from val/ (the test labels were never
    published).
    """
    looked = places(root, (FOLDER, "tiny-imagenet"))
    folder = next(
        (place for place in looked if (place / "wnids.txt").is_file()), None
    )
    if folder is None:
        raise missing(
            "tiny-imagenet",
            looked,
            [f"unpack {ADDRESS} into {root or home()} (by hand: it is a ZIP)"],
        )
    numbers = {
        name: number
        # Sorted, so that class numbers do not depend on the order of the file.
        for number, name in enumerate(sorted(_lines(folder / "wnids.txt")))
    }
    train = _pixels(
        [
            (path, numbers[name])
            for name in numbers
            for path in _images(folder / "train" / name / "images")
        ]
    )
    test = _pixels(_annotated(folder / "val", numbers))
    return from_pixels(
        "tiny-imagenet", train, test, classes=len(numbers), normalise=True
    )


def _annotated(folder: Path, numbers: dict[str, int]) -> list[tuple[Path, int]]:
    """The pairs of val_annotations.txt: file name, class, then a box that is not used."""
    rows = [line.split("\t") for line in _lines(folder / "val_annotations.txt")]
    wrong = next(
        (
            row
            for row in rows
            # A file name with a folder in it would lead out of the data set.
            if len(row) < 2 or row[1] not in numbers or Path(row[0]).name != row[0]
        ),
        None,
    )
    if wrong is not None:
        raise DataError(
            f"{folder / 'val_annotations.txt'} has a line of no known file and class: {wrong[:2]}."
        )
    return [(folder / "images" / row[0], numbers[row[1]]) for row in rows]


def _pixels(pairs: list[tuple[Path, int]]) -> tuple[Tensor, Tensor]:
    if not pairs:
        raise DataError(
            f"{FOLDER} has no images in one of its splits; unpack {ADDRESS} again."
        )
    # One tensor filled row by row: a list of 100,000 images and their stack would be
    # there twice.
    x = torch.empty(len(pairs), 3, SIDE, SIDE, dtype=torch.uint8)
    for row, (path, _) in zip(x, pairs, strict=True):
        row.copy_(_decoded(path))
    return x, torch.tensor([number for _, number in pairs])


def _decoded(path: Path) -> Tensor:
    """One JPEG file as [3, 64, 64] bytes. The size is read before the pixels, so that no bomb is
    unpacked.
    """
    pillow = _pillow()
    try:
        # Only the JPEG reader: Pillow would otherwise try every format it knows on a
        # foreign file.
        with pillow.open(path, formats=("JPEG",)) as image:
            if image.size != (SIDE, SIDE):
                raise DataError(
                    f"{path} is an image of {image.size[0]}×{image.size[1]} pixels instead of"
                    " 64×64."
                )
            # Some of the images are grey.
            return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read as a JPEG image: {error}. Unpack {ADDRESS} again."
        ) from error


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra.of("pillow", extra="images") from None
    return Image


def _images(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.JPEG"))


def _lines(path: Path) -> list[str]:
    try:
        return [
            line
            for line in path.read_text(encoding="utf-8").splitlines()
            if line.strip()
        ]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read: {error}. Unpack {ADDRESS} again."
        ) from error


DATA.register("tiny-imagenet")(
    Source(
        read=read_tiny_imagenet,
        summary="100,000 + 10,000 colour 64×64 images of 200 classes, from a folder",
    )
)
