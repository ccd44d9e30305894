"""Studies: methods compared fairly on one machine or many, and published experiments as presets.

Names are resolved on first use: a command that only reads rows (`secateurs study status`) must not
wait for everything that trains.
"""

from typing import TYPE_CHECKING

from secateurs.base.lazy import open_on_first_use

if TYPE_CHECKING:
    from secateurs_lab.study.config import How, Run, Study, Watcher
    from secateurs_lab.study.database import HISTOGRAM_EDGES, Certified, LayerKept, Point, Row
    from secateurs_lab.study.driver import Sweep
    from secateurs_lab.study.fitting import Trainer, TrainingJob
    from secateurs_lab.study.methods import (
        L1,
        METHODS,
        ACDCMethod,
        Choice,
        Dense,
        DGatingMethod,
        Dwf,
        Gradual,
        HAMMethod,
        Imp,
        Method,
        PathPenalty,
        PowerPropagationMethod,
        Prune,
        RigLMethod,
        SETMethod,
    )
    from secateurs_lab.study.settings import Certify, Data, Net, Training, Tuning
    from secateurs_lab.study.store import Store
    from secateurs_lab.study.sweep import Stopped, run

__all__ = [
    "HISTOGRAM_EDGES",
    "L1",
    "METHODS",
    "ACDCMethod",
    "Certified",
    "Certify",
    "Choice",
    "DGatingMethod",
    "Data",
    "Dense",
    "Dwf",
    "Gradual",
    "HAMMethod",
    "How",
    "Imp",
    "LayerKept",
    "Method",
    "Net",
    "PathPenalty",
    "Point",
    "PowerPropagationMethod",
    "Prune",
    "RigLMethod",
    "Row",
    "Run",
    "SETMethod",
    "Stopped",
    "Store",
    "Study",
    "Sweep",
    "Trainer",
    "Training",
    "TrainingJob",
    "Tuning",
    "Watcher",
    "run",
]

open_on_first_use(__name__)
