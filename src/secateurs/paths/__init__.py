"""Paths of ReLU networks: norms, costs, metrics, certificates."""

from secateurs.paths.costs import PathCosts, path_costs
from secateurs.paths.metric import PathMetric, path_metric
from secateurs.paths.norms import PathNorm, log2_path_norm, path_norm, path_norm_penalty

__all__ = [
    "PathCosts",
    "PathMetric",
    "PathNorm",
    "log2_path_norm",
    "path_costs",
    "path_metric",
    "path_norm",
    "path_norm_penalty",
]
