"""Paths of ReLU networks: norms, costs, liveness."""

from typing import TYPE_CHECKING

from secateurs.base.lazy import open_on_first_use

if TYPE_CHECKING:
    from secateurs.paths.costs import PathCosts, path_costs
    from secateurs.paths.draws import (
        KeepProbabilities,
        draw_variance,
        expected_path_loss,
        keep_probabilities,
    )
    from secateurs.paths.enumeration import Lifting, lifting
    from secateurs.paths.liveness import LayerLiveness, Liveness, liveness, lost_layers
    from secateurs.paths.norms import (
        PathNorm,
        factor_path_penalty,
        log2_path_norm,
        path_norm,
        path_norm_penalty,
    )

__all__ = [
    "KeepProbabilities",
    "LayerLiveness",
    "Lifting",
    "Liveness",
    "PathCosts",
    "PathNorm",
    "draw_variance",
    "expected_path_loss",
    "factor_path_penalty",
    "keep_probabilities",
    "lifting",
    "liveness",
    "log2_path_norm",
    "lost_layers",
    "path_costs",
    "path_norm",
    "path_norm_penalty",
]

open_on_first_use(__name__)
