"""The laws of weights: their thresholds and quantiles; appendix E.2."""

import math

import numpy as np
import pytest
from scipy import stats

from secateurs.errors import ArgumentError
from secateurs.theory import (
    ConvSetting,
    RandomLayer,
    masked_norm_bound,
    theorem_1_explicit,
    theorem_1_global,
    theorem_3_magnitude,
)
from secateurs.theory.laws import MAGNITUDE_LAWS, half_normal_quantile, subgaussian_quantile
from theory.drawn_laws import MANY, draws, refuses


@pytest.mark.parametrize("law", ["uniform", "normal", "subgaussian"])
def test_the_threshold_of_each_law_holds(law):
    """The quantile function bounds the r-th smallest magnitude at its Beta quantile."""
    rng, failure, size, rank = np.random.default_rng(2), 0.1, 400, 40
    level = stats.beta.isf(failure, rank, size - rank + 1)
    limit = MAGNITUDE_LAWS[law].quantile(level)
    found = [np.sort(np.abs(draws(law, size, rng)))[rank - 1] for _ in range(MANY)]
    assert refuses(int((np.array(found) > limit).sum()), MANY, failure)


def test_the_half_normal_quantile_inverts_its_law():
    for share in (1e-6, 0.3, 0.999):
        assert stats.norm.cdf(half_normal_quantile(share)) * 2 - 1 == pytest.approx(share, rel=1e-9)
    assert 2 * math.exp(-(subgaussian_quantile(0.3) ** 2) / 2) == pytest.approx(0.7)


@pytest.mark.parametrize("law", ["uniform", "normal", "bounded"])
def test_appendix_e2_without_replacement(law):
    rng, failure, shape, count = np.random.default_rng(5), 0.2, (24, 30), 120
    layer = RandomLayer(rows=24, columns=30, bound=1.0)
    bound = masked_norm_bound(layer, draws=count, failure=failure, law=law, replacement=False)
    norms = []
    for _ in range(MANY):
        mask = np.zeros(720)
        mask[rng.choice(720, count, replace=False)] = 1
        norms.append(np.linalg.norm(draws(law, shape, rng) * mask.reshape(shape), 2))
    assert refuses(int((np.array(norms) > bound).sum()), MANY, failure)


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (
            lambda: theorem_1_explicit([4, 8, 8, 2], alpha=0.5, delta=0.1, law="cauchy"),
            "'normal'",
        ),
        (
            lambda: theorem_1_explicit([4, 8, 8, 2], alpha=0.5, delta=0.1, law="bounded"),
            "thresholds",
        ),
        (
            lambda: theorem_1_global([4, 8, 8, 2], alpha=0.5, delta=0.1, law="bounded"),
            "Look the thresholds up",
        ),
        (
            lambda: theorem_1_global([4, 8, 8, 2], counts=[65], delta=0.1),
            "cannot prune 65 entries",
        ),
        (
            lambda: theorem_3_magnitude(
                ConvSetting(depth=3, channels=4, kernel=3, map_size=4),
                alpha=0.5,
                delta=0.1,
                law="bounded",
            ),
            "give the model",
        ),
        (
            lambda: masked_norm_bound(
                RandomLayer(rows=2, columns=2, bound=1.0),
                draws=5,
                failure=0.1,
                replacement=False,
            ),
            "without replacement",
        ),
    ],
)
def test_errors(ask, text):
    with pytest.raises(ArgumentError, match=text):
        ask()
