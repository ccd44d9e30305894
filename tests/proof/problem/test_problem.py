"""Two networks as one problem: where they differ, and where not."""

import copy

import pytest

import secateurs as sc
from tiny_networks import (
    tuned,
)


def test_at_a_point_the_difference_is_known(dense, generator, x):
    """A ball of radius 0 is its centre: interval, linear and affine forms give |f(x) − g(x)|
    itself.
    """
    sparse = tuned(dense, generator)
    for method in ("interval", "linear", "affine"):
        cert = sc.certify(dense.double(), sparse.double(), around=x, radius=0.0, methods=method)
        assert cert.bound == pytest.approx(cert.lower_bound, rel=1e-9), method


def test_equal_networks_differ_nowhere(dense, x):
    cert = sc.certify(dense, copy.deepcopy(dense), around=x, radius=1.0, rounding=False)
    assert (cert.bound, cert.lower_bound, cert.tightness) == (0.0, 0.0, 1.0)
    assert cert.certified_share(x) == 1.0
