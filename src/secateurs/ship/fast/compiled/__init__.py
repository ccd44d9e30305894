"""The compiled kernels (`kernels.cpp`) and the structures they read, through ctypes."""

from secateurs.ship.fast.compiled.library import (
    NAMES,
    NUMPY,
    SOURCE,
    Library,
    Program,
    library,
)
from secateurs.ship.fast.compiled.structures import (
    KINDS,
    Add,
    Cat,
    Conv,
    Gather,
    Load,
    Memory,
    Op,
    Place,
    Pool,
    Scale,
    Shape,
    Store,
    Winograd,
)

__all__ = [
    "KINDS",
    "NAMES",
    "NUMPY",
    "SOURCE",
    "Add",
    "Cat",
    "Conv",
    "Gather",
    "Library",
    "Load",
    "Memory",
    "Op",
    "Place",
    "Pool",
    "Program",
    "Scale",
    "Shape",
    "Store",
    "Winograd",
    "library",
]
