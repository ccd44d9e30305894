"""All experiments: importing this module registers them. A new file belongs in this list."""

from experiments import path_pruning as _path_pruning  # noqa: F401
from experiments import probabilistic as _probabilistic  # noqa: F401
from experiments import sketching as _sketching  # noqa: F401
from experiments.experiment import EXPERIMENTS
from experiments.factorization import dynamics as _dynamics  # noqa: F401
from experiments.factorization import exchange as _exchange  # noqa: F401
from experiments.factorization import layers as _layers  # noqa: F401
from experiments.factorization import plain_l1 as _plain_l1  # noqa: F401
from experiments.factorization import plans as _plans  # noqa: F401
from experiments.factorization import posthoc as _posthoc  # noqa: F401

__all__ = ["EXPERIMENTS"]
