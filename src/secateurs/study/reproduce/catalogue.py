"""All experiments: importing this module files them."""

from secateurs.study.reproduce.experiment import EXPERIMENTS
from secateurs.study.reproduce.factorization import beyond as _beyond  # noqa: F401
from secateurs.study.reproduce.factorization import dynamics as _dynamics  # noqa: F401
from secateurs.study.reproduce.factorization import experiments as _factorization  # noqa: F401
from secateurs.study.reproduce.factorization import plain_l1 as _plain_l1  # noqa: F401
from secateurs.study.reproduce.factorization import posthoc as _posthoc  # noqa: F401
from secateurs.study.reproduce.factorization.layers import experiment as _layers  # noqa: F401
from secateurs.study.reproduce.path_pruning import tables as _paths  # noqa: F401
from secateurs.study.reproduce.probabilistic import experiments as _probabilistic  # noqa: F401
from secateurs.study.reproduce.probabilistic import vgg as _vgg  # noqa: F401
from secateurs.study.reproduce.sketching import accuracies as _sketching  # noqa: F401
from secateurs.study.reproduce.sketching import figures as _figures  # noqa: F401

__all__ = ["EXPERIMENTS"]
