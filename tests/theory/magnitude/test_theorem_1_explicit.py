"""Appendices C.1 and E.3: Theorem 1 for every law and for one global threshold."""

import itertools
import math

import numpy as np
import pytest

from secateurs.base.singular_values import spectral_norms
from secateurs.theory import (
    ConvSetting,
    RandomLayer,
    theorem_1_explicit,
    theorem_1_global,
    theorem_2_explicit,
    theorem_3_explicit,
)
from secateurs.theory.laws import MAGNITUDE_LAWS
from secateurs.theory.magnitude import global_threshold
from theory.drawn_laws import MANY, draws, refuses
from theory.monte_carlo import assert_at_least
from theory.networks import prune_smallest
from theory.random_networks import uniform_layer


@pytest.mark.parametrize("law", ["normal", "subgaussian"])
@pytest.mark.parametrize("form", [theorem_1_explicit, theorem_1_global])
def test_appendix_c1_and_e3_bound_pruned_networks(law, form):
    """Widths 16-48-48-40-5, K = 1: the error found by power iterations over inputs stays below."""
    widths, alpha, delta, runs = [16, 48, 48, 40, 5], 0.4, 0.2, 60
    found = form(widths, alpha=alpha, delta=delta, law=law)
    rng, bad = np.random.default_rng(3), 0
    sizes = [a * b for a, b in itertools.pairwise(widths[1:-1])]
    counts = [math.floor(size**0.6 * (1 + 1e-12)) for size in sizes]
    for _ in range(runs):
        dense = [
            draws(law, s, rng) / math.sqrt(max(s)) for s in zip(widths[1:], widths, strict=False)
        ]
        sparse = [
            dense[0],
            *cut(dense[1:-1], counts, form is theorem_1_global),
            dense[-1],
        ]
        for k, (w, v) in enumerate(zip(dense, sparse, strict=True)):
            bad += np.linalg.norm(w - v, 2) > found.layers[k].change * (1 + 1e-9) + 1e-12
        xs = rng.normal(size=(200, 16))
        xs /= np.linalg.norm(xs, axis=1, keepdims=True)
        gap = np.linalg.norm(forward(dense, xs) - forward(sparse, xs), axis=1).max()
        assert gap <= found.error
    assert refuses(bad, runs, delta)


def cut(layers, counts, whole):
    """The smallest magnitudes of each layer, or of all together."""
    if not whole:
        return [
            np.where(np.abs(w) > np.sort(np.abs(w), axis=None)[n - 1], w, 0.0)
            for w, n in zip(layers, counts, strict=True)
        ]
    level = np.sort(np.concatenate([np.abs(w).ravel() for w in layers]))[sum(counts) - 1]
    return [np.where(np.abs(w) > level, w, 0.0) for w in layers]


def forward(layers, x):
    for w in layers[:-1]:
        x = np.maximum(x @ w.T, 0)
    return x @ layers[-1].T


def test_the_global_threshold_holds_for_layers_of_unlike_scale():
    shapes, units, total, failure = [(20, 20), (10, 30)], [1.0, 0.2], 150, 0.1
    layers = [
        RandomLayer(rows=rows, columns=columns, bound=unit)
        for (rows, columns), unit in zip(shapes, units, strict=True)
    ]
    law = MAGNITUDE_LAWS["uniform"]
    limit = global_threshold(layers, total, failure=failure, law=law)
    rng = np.random.default_rng(4)
    found = []
    for _ in range(MANY):
        parts = [u * rng.uniform(0, 1, a * b) for (a, b), u in zip(shapes, units, strict=True)]
        found.append(np.sort(np.concatenate(parts))[total - 1])
    assert refuses(int((np.array(found) > limit).sum()), MANY, failure)
    assert limit < 1.4 * np.mean(found)


def test_one_layer_makes_global_and_layerwise_the_same():
    one = theorem_1_explicit([8, 64, 64, 4], alpha=0.5, delta=0.01)
    whole = theorem_1_global([8, 64, 64, 4], alpha=0.5, delta=0.01)
    assert whole.error == pytest.approx(one.error, rel=1e-6)
    assert [layer.removed for layer in whole.layers] == [0, 64, 0]


def test_a_smaller_law_never_costs_more():
    """Uniform entries on ±1 are bounded ones; with less assumed the error is larger."""
    errors = [
        theorem_2_explicit([8, 64, 64, 4], alpha=0.5, delta=0.1, law=law).error
        for law in ("uniform", "bounded")
    ]
    assert errors[0] < errors[1]
    setting = ConvSetting(depth=3, channels=16, kernel=3, map_size=8)
    for law in ("uniform", "bounded", "normal", "subgaussian"):
        assert theorem_3_explicit(setting, alpha=0.5, delta=0.1, law=law).error > 0


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
def test_theorem_1_explicit_holds_at_real_sparsities(alpha, generator):
    """Two inner layers of unequal widths, up to 66 % pruned, ReLU errors bounded layer by layer:
    still within.
    """
    widths, delta, batch = [16, 64, 48, 80, 4], 0.05, 200
    claim = theorem_1_explicit(widths, alpha=alpha, delta=delta)
    layers = [
        uniform_layer(a, b, batch, generator) for a, b in zip(widths[1:], widths[:-1], strict=True)
    ]
    counts = [math.floor((widths[k] * widths[k + 1]) ** (1 - alpha)) for k in (1, 2)]
    norms = [spectral_norms(w, tolerance=1e-4).values for w in layers]
    cut = [
        spectral_norms(w - prune_smallest(w, n), tolerance=1e-4).values
        for w, n in zip(layers[1:3], counts, strict=True)
    ]
    error = norms[0] * norms[3] * ((norms[1] + cut[0]) * (norms[2] + cut[1]) - norms[1] * norms[2])
    assert_at_least(int((error <= claim.error).sum()), batch, 1 - delta)
    assert float(error.max()) > claim.error / 60


def test_edges_of_the_explicit_theorem():
    """Nothing pruned: no error. Everything pruned: the trivial bound."""
    assert theorem_1_explicit([4, 8, 8, 4], delta=0.1, counts=[0]).error == 0
    full = theorem_1_explicit([4, 8, 8, 4], delta=0.1, counts=[64])
    assert full.error == pytest.approx(full.trivial) and full.vacuous
