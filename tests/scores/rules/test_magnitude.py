"""Magnitude on a network of two layers."""

import secateurs as sc
from scores.two_layers import check, two_layers


def test_magnitude():
    check(sc.score(two_layers(), "magnitude"), [[1.0, 2.0], [3.0, 1.0]], [[2.0, 1.0]])
