"""Paths of ReLU networks: norms, costs, metrics, certificates."""

from secateurs.paths.certificate import Certificate
from secateurs.paths.certificates import certify
from secateurs.paths.costs import PathCosts, path_costs
from secateurs.paths.generalization import (
    GeneralizationBound,
    GeneralizationBounds,
    generalization_bounds,
)
from secateurs.paths.lifting import Lifting, lifting
from secateurs.paths.lipschitz import LipschitzBound, LipschitzBounds, lipschitz_bounds
from secateurs.paths.liveness import LayerLiveness, Liveness, liveness, lost_layers, remove_dead_
from secateurs.paths.methods import METHODS
from secateurs.paths.metric import PathMetric, path_metric
from secateurs.paths.norms import PathNorm, log2_path_norm, path_norm, path_norm_penalty
from secateurs.paths.rescale import Normalization, Rescaling, normalize_, rescale_random_
from secateurs.paths.statistical import StatisticalCertificate, statistical

__all__ = [
    "METHODS",
    "Certificate",
    "GeneralizationBound",
    "GeneralizationBounds",
    "LayerLiveness",
    "Lifting",
    "LipschitzBound",
    "LipschitzBounds",
    "Liveness",
    "Normalization",
    "PathCosts",
    "PathMetric",
    "PathNorm",
    "Rescaling",
    "StatisticalCertificate",
    "certify",
    "generalization_bounds",
    "lifting",
    "lipschitz_bounds",
    "liveness",
    "log2_path_norm",
    "lost_layers",
    "normalize_",
    "path_costs",
    "path_metric",
    "path_norm",
    "path_norm_penalty",
    "remove_dead_",
    "rescale_random_",
    "statistical",
]
