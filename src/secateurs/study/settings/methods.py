"""The methods a study compares: each kind is one frozen value, registered under its name."""

from secateurs.study.settings.method import METHODS, Dense, Method
from secateurs.study.settings.pruning import Gradual, Imp, Prune
from secateurs.study.settings.sparse_training import L1, Dwf, PathPenalty

__all__ = [
    "L1",
    "METHODS",
    "Dense",
    "Dwf",
    "Gradual",
    "Imp",
    "Method",
    "PathPenalty",
    "Prune",
]
