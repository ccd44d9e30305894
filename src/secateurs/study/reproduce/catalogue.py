"""All experiments: importing this module files them."""

from secateurs.study.reproduce.experiment import EXPERIMENTS
from secateurs.study.reproduce.path_pruning import tables as _paths  # noqa: F401
from secateurs.study.reproduce.probabilistic import experiments as _probabilistic  # noqa: F401
from secateurs.study.reproduce.sketching import accuracies as _sketching  # noqa: F401

__all__ = ["EXPERIMENTS"]
