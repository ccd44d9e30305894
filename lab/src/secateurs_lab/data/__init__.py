"""The data sets of the papers as plain tensors: one loader per format, no pickles, nothing is
downloaded without being asked for.
"""

# Imported for their effect: these files register the data sets.
from secateurs_lab.data import images, small  # noqa: F401 noqa: F401
from secateurs_lab.data.dataset import (
    DATA,
    Dataset,
    Source,
    augment,
    flip,
    from_pixels,
    from_tensors,
    load,
    rotate,
    shift,
)

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
