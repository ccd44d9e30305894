"""Proofs: bounds on how far two networks differ, kept and checked again.

Networks pruned to a bound, networks in another scaling, and questions about networks of others.
"""

from typing import TYPE_CHECKING

from secateurs.base.lazy import open_on_first_use

if TYPE_CHECKING:
    from secateurs.proof.certificate import Certificate
    from secateurs.proof.certify import certify
    from secateurs.proof.dead import remove_dead_
    from secateurs.proof.lipschitz import LipschitzBound, LipschitzBounds, lipschitz_bounds
    from secateurs.proof.methods import METHODS
    from secateurs.proof.metric import PathMetric, path_metric
    from secateurs.proof.normalize import Normalization, normalize_
    from secateurs.proof.recheck import Recheck, recheck
    from secateurs.proof.rescale import rescale_random_
    from secateurs.proof.scaling import Rescaling
    from secateurs.proof.smallest_margin import OpenBoxes, SmallestMargin, smallest_margin
    from secateurs.proof.statistical import StatisticalCertificate, statistical
    from secateurs.proof.to_bound import PrunedToBound, prune_to_bound_
    from secateurs.proof.training import certified_gap, certified_loss, masked, rounded
    from secateurs.proof.written import WrittenProof, write_proof

__all__ = [
    "METHODS",
    "Certificate",
    "LipschitzBound",
    "LipschitzBounds",
    "Normalization",
    "OpenBoxes",
    "PathMetric",
    "PrunedToBound",
    "Recheck",
    "Rescaling",
    "SmallestMargin",
    "StatisticalCertificate",
    "WrittenProof",
    "certified_gap",
    "certified_loss",
    "certify",
    "lipschitz_bounds",
    "masked",
    "normalize_",
    "path_metric",
    "prune_to_bound_",
    "recheck",
    "remove_dead_",
    "rescale_random_",
    "rounded",
    "smallest_margin",
    "statistical",
    "write_proof",
]

open_on_first_use(__name__)
