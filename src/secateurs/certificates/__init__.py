"""Certificates: bounds on the largest difference of two networks of one structure."""

from typing import TYPE_CHECKING

from secateurs.lazy import open_on_first_use

if TYPE_CHECKING:
    from secateurs.certificates.certificate import Certificate
    from secateurs.certificates.certify import certify
    from secateurs.certificates.methods import METHODS
    from secateurs.certificates.recheck import Recheck, recheck
    from secateurs.certificates.statistical import StatisticalCertificate, statistical
    from secateurs.certificates.training import certified_gap, certified_loss, masked, rounded

__all__ = [
    "METHODS",
    "Certificate",
    "Recheck",
    "StatisticalCertificate",
    "certified_gap",
    "certified_loss",
    "certify",
    "masked",
    "recheck",
    "rounded",
    "statistical",
]

open_on_first_use(__name__)
