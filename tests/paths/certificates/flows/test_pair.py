"""The error of a sum of n products."""

import pytest
import torch

from secateurs.paths.certificates.flows.pair import gamma
from secateurs.paths.certificates.flows.rounding import unit_roundoff


def test_gamma():
    assert gamma(10, 0.0) == 0.0
    assert gamma(1, 2.0**-24) == pytest.approx(2.0**-24)
    assert gamma(2**24, 2.0**-24) == float("inf")
    assert unit_roundoff(torch.float32) == 2.0**-24
    assert unit_roundoff(torch.float64) == 2.0**-53
