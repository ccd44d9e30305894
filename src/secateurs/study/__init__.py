"""Studies: methods compared fairly on one machine or many, and published experiments as presets.

Names are resolved on first use: whoever only reads rows (`secateurs study status`) must not wait
for everything that trains.
"""

from typing import TYPE_CHECKING

from secateurs.lazy import open_on_first_use

if TYPE_CHECKING:
    from secateurs.study.config import Study
    from secateurs.study.driver import Sweep
    from secateurs.study.how import How, Watcher
    from secateurs.study.keeping.parts import (
        HISTOGRAM_EDGES,
        Certified,
        LayerKept,
        Point,
    )
    from secateurs.study.keeping.row import Row
    from secateurs.study.runs import Run
    from secateurs.study.settings.methods import (
        L1,
        METHODS,
        Dense,
        Dwf,
        Gradual,
        Imp,
        Method,
        PathPenalty,
        Prune,
    )
    from secateurs.study.settings.parts import Certify, Data, Net
    from secateurs.study.settings.training import Training
    from secateurs.study.store import Store
    from secateurs.study.sweep import Stopped, run

__all__ = [
    "HISTOGRAM_EDGES",
    "L1",
    "METHODS",
    "Certified",
    "Certify",
    "Data",
    "Dense",
    "Dwf",
    "Gradual",
    "How",
    "Imp",
    "LayerKept",
    "Method",
    "Net",
    "PathPenalty",
    "Point",
    "Prune",
    "Row",
    "Run",
    "Stopped",
    "Store",
    "Study",
    "Sweep",
    "Training",
    "Watcher",
    "run",
]

open_on_first_use(__name__)
