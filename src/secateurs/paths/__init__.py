"""Paths of ReLU networks: norms, costs, metrics, certificates."""

from secateurs.paths.bounds.generalization import generalization_bounds
from secateurs.paths.bounds.lipschitz import lipschitz_bounds
from secateurs.paths.bounds.table.lipschitz_rows import (
    LipschitzBound,
    LipschitzBounds,
)
from secateurs.paths.bounds.table.rows import (
    GeneralizationBound,
    GeneralizationBounds,
)
from secateurs.paths.certificates.certificate import Certificate
from secateurs.paths.certificates.certify import certify
from secateurs.paths.certificates.keeping.recheck import Recheck, recheck
from secateurs.paths.certificates.methods import METHODS
from secateurs.paths.certificates.samples.result import StatisticalCertificate
from secateurs.paths.certificates.statistical import statistical
from secateurs.paths.certificates.training import (
    certified_gap,
    certified_loss,
    masked,
    rounded,
)
from secateurs.paths.channels.alive import LayerLiveness, Liveness
from secateurs.paths.channels.dead import remove_dead_
from secateurs.paths.channels.liveness import liveness
from secateurs.paths.channels.lost import lost_layers
from secateurs.paths.channels.normalize import Normalization, normalize_
from secateurs.paths.channels.rescale import rescale_random_
from secateurs.paths.channels.scaling import Rescaling
from secateurs.paths.norms.costs import PathCosts, path_costs
from secateurs.paths.norms.enumeration import Lifting, lifting
from secateurs.paths.norms.metric import PathMetric, path_metric
from secateurs.paths.norms.norms import log2_path_norm, path_norm, path_norm_penalty
from secateurs.paths.norms.result import PathNorm

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
    "Recheck",
    "Rescaling",
    "StatisticalCertificate",
    "certified_gap",
    "certified_loss",
    "certify",
    "generalization_bounds",
    "lifting",
    "lipschitz_bounds",
    "liveness",
    "log2_path_norm",
    "lost_layers",
    "masked",
    "normalize_",
    "path_costs",
    "path_metric",
    "path_norm",
    "path_norm_penalty",
    "recheck",
    "remove_dead_",
    "rescale_random_",
    "rounded",
    "statistical",
]
