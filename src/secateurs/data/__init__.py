"""The data sets of the papers as plain tensors: one loader per format, no pickles, nothing
downloaded unasked.
"""

# Imported for what they do: these files register the data sets.
from secateurs.data import (
    cifar,  # noqa: F401
    covertype,  # noqa: F401
    digits,  # noqa: F401
    mnist,  # noqa: F401
    tiny_imagenet,  # noqa: F401
)
from secateurs.data.augmentation import augment, flip, rotate, shift
from secateurs.data.base import DATA, Source, load
from secateurs.data.dataset import Dataset
from secateurs.data.making import from_pixels, from_tensors

__all__ = [
    "DATA",
    "Dataset",
    "Source",
    "augment",
    "flip",
    "from_pixels",
    "from_tensors",
    "load",
    "rotate",
    "shift",
]
