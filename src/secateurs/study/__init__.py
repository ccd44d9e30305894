"""Studies: methods compared fairly on one machine or many, and published experiments as presets.

Names are resolved on first use: whoever only reads rows (`secateurs study status`) must not wait
for everything that trains.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_PLACES = {
    "runs": "Run",
    "keeping.parts": "HISTOGRAM_EDGES Certified LayerKept Point",
    "config": "Study",
    "driver": "Sweep",
    "how": "How Watcher",
    "keeping.row": "Row",
    "settings.methods": "L1 METHODS Dense Dwf Gradual Imp Method PathPenalty Prune",
    "settings.parts": "Certify Data Net",
    "settings.training": "Training",
    "store": "Store",
    "sweep": "Stopped run",
}
_HOME = {name: place for place, names in _PLACES.items() for name in names.split()}

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


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"secateurs.study.{_HOME[name]}"), name)
    raise AttributeError(f"module 'secateurs.study' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
