"""The laboratory of secateurs: methods compared on equal terms.

It has the data, the models and the training loop for that, and one page that shows the result.
"""

from typing import TYPE_CHECKING

from secateurs.base.lazy import open_on_first_use
from secateurs_lab.version import __version__ as __version__

if TYPE_CHECKING:
    from secateurs_lab import data, demo, models, report, study, train, zoo

__all__ = ["data", "demo", "models", "report", "study", "train", "zoo"]

open_on_first_use(__name__)
