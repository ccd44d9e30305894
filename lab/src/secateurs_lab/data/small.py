"""Small sets: scikit-learn's digits, and Covertype (Blackard & Dean 1998): 581,012 patches of
forest in 54 numbers, seven kinds of trees.

In Covertype an example is an image of 54 channels and 1×1 pixel, so that it trains like any other
set (on networks that flatten their input).
"""

import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from secateurs.errors import DataError, MissingExtra
from secateurs_lab.data.dataset import DATA, Dataset, Source, from_tensors, standardise
from secateurs_lab.data.files import fetch, home, missing, places

FILES = ("covtype.data.gz", "covtype.data")
ADDRESS = "https://ndownloader.figshare.com/files/5976039"
SHA256 = "614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771"
"""The address of scikit-learn's `fetch_covtype`, and the checksum published there."""
ROWS, COLUMNS, CLASSES = 581_012, 54, 7
NUMERICAL = 10
"""The first columns are measurements; the other 44 hold 0 or 1."""

NO_DIGITS = "scikit-learn is not installed. Install it with: pip install scikit-learn"


def read_covertype(root: Path | None, download: bool) -> Dataset:
    """The numerical columns normalised by the training set; four fifths train, by a fixed
    permutation.
    """
    looked = places(root, ("covertype", "covtype"))
    found = next(
        (path for place in looked for name in FILES if (path := place / name).is_file()),
        None,
    )
    folder = (root or home()) / "covertype"
    if found is None and download:
        found = fetch(ADDRESS, folder / FILES[0], sha256=SHA256)
    if found is None:
        raise missing(
            "covertype",
            looked,
            [
                "load('covertype', download=True)",
                f"put {FILES[0]} from https://archive.ics.uci.edu/dataset/31/covertype into"
                f" {folder}",
            ],
        )
    return _split(*_text(found))


def _text(path: Path) -> tuple[Tensor, Tensor]:
    """Rows of 54 numbers and a class from 1 to 7, separated by commas."""
    try:
        table = torch.from_numpy(
            np.loadtxt(
                # One row more than there are, to notice a longer file.
                path,
                delimiter=",",
                dtype=np.float32,
                ndmin=2,
                max_rows=ROWS + 1,
            )
        )
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(
            f"{path} cannot be read as a table: {error}. Delete it and get it again."
        ) from error
    if not 10 <= len(table) <= ROWS or table.shape[1] != COLUMNS + 1:
        raise DataError(
            f"{path} has {'more than ' * (len(table) > ROWS)}{min(len(table), ROWS)} rows of"
            f" {table.shape[1]} numbers instead of 10 to {ROWS} of {COLUMNS + 1}. Delete it and get"
            " it again."
        )
    x, y = table[:, :COLUMNS], table[:, COLUMNS]
    wrong = ~x.isfinite().all(1) | ~torch.isin(x[:, NUMERICAL:], torch.tensor([0.0, 1.0])).all(1)
    wrong |= ~torch.isin(y, torch.arange(1.0, CLASSES + 1))
    if bool(wrong.any()):
        raise DataError(
            f"{path} has {int(wrong.sum())} rows that are not Covertype's (first:"
            f" {int(wrong.nonzero()[0]) + 1}): ten numbers, 44 of 0 or 1, a class from 1 to"
            f" {CLASSES}. Delete it and get it again."
        )
    return x, y.long()


def _split(x: Tensor, y: Tensor) -> Dataset:
    # RandomState is frozen by NumPy's compatibility policy: the split is the same everywhere, for
    # good.
    order = torch.from_numpy(np.random.RandomState(0).permutation(len(y)))
    x, y = x[order, :, None, None], y[order] - 1
    train = len(y) * 4 // 5
    plain = from_tensors(
        "covertype",
        train_x=x[:train],
        train_y=y[:train],
        test_x=x[train:],
        test_y=y[train:],
        classes=CLASSES,
    )
    # Columns of 0 and 1 stay as they are.
    return standardise(plain, channels=NUMERICAL)


DATA.register("covertype")(
    Source(
        read=read_covertype,
        summary="464,809 + 116,203 rows of 54 numbers on forests, 7 kinds",
        shape=(54, 1, 1),
    )
)


TRAIN = 1437
"""Four fifths of the images train, the rest test."""


def read_digits(root: Path | None, download: bool) -> Dataset:
    """The digits with pixels in [0, 1], split once and for all by a fixed permutation."""
    images, labels = _pixels_and_labels()
    # RandomState is frozen by NumPy's compatibility policy: the split is the same everywhere, for
    # good.
    order = np.random.RandomState(0).permutation(len(labels))
    # The pixels of scikit-learn run from 0 to 16.
    x = torch.from_numpy(images[order]).float().div_(16).view(-1, 1, 8, 8)
    y = torch.from_numpy(labels[order]).long()
    return from_tensors(
        "digits",
        train_x=x[:TRAIN],
        train_y=y[:TRAIN],
        test_x=x[TRAIN:],
        test_y=y[TRAIN:],
        classes=10,
    )


def _pixels_and_labels() -> tuple[Any, Any]:
    """scikit-learn's table, read where it lies: importing scikit-learn takes two seconds."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise MissingExtra(NO_DIGITS)
    table = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not table.exists():  # it lay there in every version so far
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        return images, labels
    rows = np.loadtxt(table, delimiter=",")
    return rows[:, :-1], rows[:, -1].astype(int)


DATA.register("digits")(
    Source(
        read=read_digits,
        summary="1,437 + 360 grey 8×8 images of digits, from scikit-learn",
        shape=(1, 8, 8),
    )
)
