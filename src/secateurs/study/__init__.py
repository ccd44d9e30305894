"""Studies: methods compared fairly on one machine or many, and published experiments as presets."""

from secateurs.study.config import Certify, Data, Net, Run, Study
from secateurs.study.driver import How, Sweep, Watcher
from secateurs.study.keeping.row import (
    HISTOGRAM_EDGES,
    Certified,
    LayerKept,
    Point,
    Row,
)
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
