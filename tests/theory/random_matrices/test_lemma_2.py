"""Lemma 2: norms of matrices of any sub-Gaussian law, against simulation."""

import math

import numpy as np
import pytest

from secateurs.theory import RandomLayer, lemma_2, masked_norm_bound
from secateurs.theory.random_matrices import subgaussian_norm_bound
from theory.drawn_laws import MANY, draws, refuses


@pytest.mark.parametrize("law", ["normal", "subgaussian"])
@pytest.mark.parametrize("shape", [(1, 1), (30, 30), (5, 200)])
def test_lemma_2_and_the_norm_bounds_hold(law, shape):
    rng, failure = np.random.default_rng(0), 0.2
    norms = np.array([np.linalg.norm(draws(law, shape, rng), 2) for _ in range(MANY)])
    for bound in (
        subgaussian_norm_bound(*shape, failure=failure),
        masked_norm_bound(
            RandomLayer(rows=shape[0], columns=shape[1], bound=1.0),
            failure=failure,
            law=law,
        ),
    ):
        assert refuses(int((norms > bound).sum()), MANY, failure)
    constants = lemma_2()
    excess = 2.0
    level = constants.constant * (math.sqrt(shape[0]) + math.sqrt(shape[1])) + excess
    assert refuses(int((norms > level).sum()), MANY, min(1.0, constants.failure(excess)))
    assert subgaussian_norm_bound(*shape, failure=math.exp(-(excess**2) / 8)) <= level


def test_gaussian_norms_are_not_bounded_by_far():
    """The bound for normal entries is within a third of what is drawn."""
    rng = np.random.default_rng(1)
    largest = max(np.linalg.norm(rng.normal(size=(64, 64)), 2) for _ in range(100))
    bound = masked_norm_bound(
        RandomLayer(rows=64, columns=64, bound=1.0), failure=0.01, law="normal"
    )
    assert largest < bound < 1.4 * largest
