"""The 1,797 handwritten digits of scikit-learn: 8×8 grey images, on every machine that has the
package.
"""

from pathlib import Path

import numpy as np
import torch

from secateurs.data.base import DATA, Source
from secateurs.data.dataset import Dataset
from secateurs.data.making import from_tensors
from secateurs.errors import MissingExtra

TRAIN = 1437
"""Four fifths of the images train, the rest test."""


def read_digits(root: Path | None, download: bool) -> Dataset:
    """The digits with pixels in [0, 1], split once and for all by a fixed permutation."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingExtra.of("scikit-learn", extra="demo") from None
    images, labels = load_digits(return_X_y=True)
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


DATA.register("digits")(
    Source(
        read=read_digits,
        summary="1,437 + 360 grey 8×8 images of digits, from scikit-learn",
    )
)
