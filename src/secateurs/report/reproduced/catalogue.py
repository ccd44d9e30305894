"""All figures: importing this module files them under the names of their experiments."""

from collections.abc import Sequence

from secateurs.report.panel import Panel
from secateurs.report.reproduced import ablations as _ablations  # noqa: F401
from secateurs.report.reproduced import dynamics as _dynamics  # noqa: F401
from secateurs.report.reproduced import factorization as _factorization  # noqa: F401
from secateurs.report.reproduced import further as _further  # noqa: F401
from secateurs.report.reproduced import layers as _layers  # noqa: F401
from secateurs.report.reproduced import path_pruning as _paths  # noqa: F401
from secateurs.report.reproduced import probabilistic as _probabilistic  # noqa: F401
from secateurs.report.reproduced import sketching as _sketching  # noqa: F401
from secateurs.report.reproduced.figure import FIGURES
from secateurs.study.reproduce.experiment import Row


def figures_of(name: str, rows: Sequence[Row]) -> list[Panel]:
    """The figures of an experiment, from as many of its rows as there are.

    An experiment whose results are a table of numbers has none.
    """
    if name not in FIGURES or not rows:
        return []
    # A figure without a mark is an empty frame: most rows are still to come.
    return [panel for panel in FIGURES[name](rows) if panel.drawing is not None]
