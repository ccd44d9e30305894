"""Appendix C.2: the filters of smallest norm go."""

import math

import numpy as np
import pytest

from secateurs.theory import ConvSetting, theorem_3_magnitude
from secateurs.theory.laws import half_normal_quantile
from secateurs.theory.random_pruning import filter_quantile
from theory.drawn_laws import draws, refuses


@pytest.mark.parametrize("law", ["uniform", "normal"])
def test_appendix_c2_the_filters_of_smallest_norm(law):
    """Circular 3×3 convolutions, 6 → 6 on 4×4 maps: norms by Lemma 7 for every frequency."""
    setting = ConvSetting(depth=3, channels=6, kernel=3, map_size=4)
    delta, runs = 0.2, 100
    found = theorem_3_magnitude(setting, alpha=0.8, delta=delta, law=law)
    count, unit = found.layers[1].removed, 1 / (4 * math.sqrt(6))
    rng, bad = np.random.default_rng(6), 0
    for _ in range(runs):
        kernel = unit * draws(law, (6, 6, 3, 3), rng)
        sizes = np.abs(kernel).sum((2, 3))
        gone = kernel * (sizes <= np.sort(sizes, axis=None)[count - 1])[..., None, None]
        spectrum = np.fft.fft2(gone, s=(4, 4)).transpose(2, 3, 0, 1)
        bad += np.linalg.norm(spectrum, 2, axis=(2, 3)).max() > found.layers[1].change
    assert count == math.floor(6**1.2)
    assert refuses(bad, runs, delta)


def test_filter_quantiles_against_exact_sums():
    """Two uniform entries: P(U + V ≤ t) = t²/2; three: t³/6 up to 1; normal ones lie below."""
    assert filter_quantile(2, 0.125) == pytest.approx(0.5, abs=1e-8)
    assert filter_quantile(3, 1 / 6) == pytest.approx(1.0, abs=1e-8)
    assert filter_quantile(25, 0.5) == pytest.approx(12.5, abs=1e-8)
    sums = np.abs(np.random.default_rng(7).normal(size=(20_000, 9))).sum(1)
    assert (sums <= filter_quantile(9, 0.3, law="normal")).mean() >= 0.3


@pytest.mark.parametrize("share", [0.1, 0.3, 0.9])
def test_a_normal_filter_of_one_tap_is_a_half_normal_weight(share):
    """With one tap the bound on the ℓ1 norm is exact, so nothing loose can hide a slip."""
    found = filter_quantile(1, share, law="normal")
    assert found == pytest.approx(half_normal_quantile(share), rel=1e-12)


@pytest.mark.parametrize("law", ["uniform", "normal"])
@pytest.mark.parametrize("depth", [3, 5])
def test_the_layers_give_away_the_whole_failure_and_no_more(law, depth):
    setting = ConvSetting(depth=depth, channels=6, kernel=3, map_size=4)
    found = theorem_3_magnitude(setting, alpha=0.8, delta=0.2, law=law)
    assert sum(layer.failure for layer in found.layers) == pytest.approx(0.2)
