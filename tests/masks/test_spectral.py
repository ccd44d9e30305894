"""The spectral budget: exact totals, better than every other allocation of its own objective, edges."""

from itertools import product

import pytest
import torch

from secateurs.masks import select
from secateurs.masks.spectral import matrix_norm, product_bound


def weights(generator, **shapes):
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def bound(w, masks):
    norms = {name: matrix_norm(v) for name, v in w.items()}
    return product_bound(norms, {name: matrix_norm(w[name] * ~masks[name]) for name in w})


@pytest.fixture
def w(generator):
    """Layers of unlike spectra: one of small weights beside a few large, one flat, one of low rank, one a kernel."""
    found = weights(generator, spiky=(30, 40), flat=(30, 40), conv=(8, 4, 3, 3))
    found["spiky"] = found["spiky"] ** 5
    found["low"] = torch.outer(torch.randn(20, generator=generator), torch.randn(50, generator=generator))
    return found


@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.8, 0.97, 1.0])
def test_totals_are_exact(w, sparsity):
    masks = select({k: v.abs() for k, v in w.items()}, sparsity=sparsity, scope="spectral", weights=w, floor=0)
    total = sum(v.numel() for v in w.values())
    assert sum(int(m.sum()) for m in masks.values()) == total - round(sparsity * total)


@pytest.mark.parametrize("sparsity", [0.5, 0.8, 0.9])
def test_the_bound_is_smaller_than_with_other_scopes(w, sparsity):
    scores = {k: v.abs() for k, v in w.items()}
    bounds = {
        scope: bound(w, select(scores, sparsity=sparsity, scope=scope, weights=w))
        for scope in ("spectral", "global", "uniform", "erk")
    }
    assert bounds["spectral"] <= min(bounds.values()) * 1.001, bounds


def test_no_grid_allocation_is_much_better(generator):
    """Brute force over all allocations in steps of 5 % on two layers."""
    w = weights(generator, a=(20, 20), b=(20, 20))
    w["a"] = w["a"] ** 3
    scores = {k: v.abs() for k, v in w.items()}
    found = bound(w, select(scores, sparsity=0.6, scope="spectral", weights=w))
    options = []
    for a, b in product(range(0, 401, 20), repeat=2):
        if a + b == 320 and min(a, b) > 0:
            masks = {k: torch.zeros(400, dtype=torch.bool) for k in w}
            for k, n in (("a", a), ("b", b)):
                masks[k][scores[k].flatten().topk(n).indices] = True
            options.append(bound(w, {k: m.view(20, 20) for k, m in masks.items()}))
    assert found <= min(options) * 1.05


def test_scale_of_a_layer_does_not_matter(w):
    scores = {k: v.abs() for k, v in w.items()}
    one = select(scores, sparsity=0.8, scope="spectral", weights=w)
    scaled = {**w, "flat": w["flat"] * 1e6}
    other = select({k: v.abs() for k, v in scaled.items()}, sparsity=0.8, scope="spectral", weights=scaled)
    assert all(torch.equal(one[k], other[k]) for k in one)


def test_zero_layers_ties_and_vectors():
    w = {"zero": torch.zeros(5, 5), "tied": torch.ones(5, 5), "vector": torch.arange(1.0, 11.0)}
    masks = select({k: v.abs() for k, v in w.items()}, density=0.5, scope="spectral", weights=w)
    assert sum(int(m.sum()) for m in masks.values()) == 30
    assert int(masks["zero"].sum()) <= 1  # nothing is lost with it


def test_weights_as_scores(w):
    """absolute=True ranks the weights themselves, and takes them for the norms, too."""
    given = select({k: v.abs() for k, v in w.items()}, sparsity=0.8, scope="spectral", weights=w)
    found = select(w, sparsity=0.8, scope="spectral", absolute=True)
    assert all(torch.equal(given[k], found[k]) for k in w)


def test_scores_stand_in_for_the_weights(w):
    scores = {k: v.abs() for k, v in w.items()}
    masks = select(scores, sparsity=0.8, scope="spectral")
    assert sum(int(m.sum()) for m in masks.values()) == round(0.2 * sum(v.numel() for v in w.values()))
