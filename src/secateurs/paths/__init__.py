"""Paths of ReLU networks: norms, costs, metrics, bounds."""

from typing import TYPE_CHECKING

from secateurs.lazy import open_on_first_use

if TYPE_CHECKING:
    from secateurs.paths.costs import PathCosts, path_costs
    from secateurs.paths.description import DescriptionLength, description_length
    from secateurs.paths.enumeration import Lifting, lifting
    from secateurs.paths.generalization import (
        GeneralizationBound,
        GeneralizationBounds,
        generalization_bounds,
    )
    from secateurs.paths.lipschitz import LipschitzBound, LipschitzBounds, lipschitz_bounds
    from secateurs.paths.liveness import LayerLiveness, Liveness, liveness, lost_layers
    from secateurs.paths.metric import PathMetric, path_metric
    from secateurs.paths.norms import PathNorm, log2_path_norm, path_norm, path_norm_penalty

__all__ = [
    "DescriptionLength",
    "GeneralizationBound",
    "GeneralizationBounds",
    "LayerLiveness",
    "Lifting",
    "LipschitzBound",
    "LipschitzBounds",
    "Liveness",
    "PathCosts",
    "PathMetric",
    "PathNorm",
    "description_length",
    "generalization_bounds",
    "lifting",
    "lipschitz_bounds",
    "liveness",
    "log2_path_norm",
    "lost_layers",
    "path_costs",
    "path_metric",
    "path_norm",
    "path_norm_penalty",
]

open_on_first_use(__name__)
