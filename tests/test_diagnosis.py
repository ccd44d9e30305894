"""Diagnosis against known laws, measurement against exact norms, and both against bad input."""

import copy
import json
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import secateurs as sc
from secateurs.diagnosis.measure import clopper_pearson
from secateurs.errors import ArgumentError, EmptySelectionError, ParameterError, StructureMismatch


def law(name, generator, shape=(128, 64)):
    draw = torch.randn(shape, generator=generator)
    return {
        "normal": draw / 8,
        "uniform": (torch.rand(shape, generator=generator) * 2 - 1) * 1.5 / math.sqrt(128),
        "shifted": draw / 8 + 0.1,
        "heavy": draw**3 / 8,
    }[name]


def test_moments_and_distances_are_those_of_scipy(generator):
    weight = law("normal", generator)
    layer = sc.diagnose({"w": weight}).layers[0]
    values = weight.double().numpy().ravel()
    assert layer.mean == pytest.approx(values.mean()) and layer.variance == pytest.approx(values.var())
    assert layer.kurtosis == pytest.approx(stats.kurtosis(values, fisher=False))
    assert layer.ks_normal == pytest.approx(stats.kstest(values, "norm", (values.mean(), values.std())).statistic)
    half = math.sqrt(3) * values.std()
    fitted = (values.mean() - half, 2 * half)
    assert layer.ks_uniform == pytest.approx(stats.kstest(values, "uniform", fitted).statistic)
    assert sum(layer.counts) == values.size and len(layer.edges) == len(layer.counts) + 1
    assert layer.k1 == pytest.approx((values**2).mean() * 128) and layer.k2 == pytest.approx(
        (values**4).mean() * 128**2
    )


@pytest.mark.parametrize(
    ("name", "magnitude", "random"),
    [("normal", False, True), ("uniform", True, True), ("shifted", False, False), ("heavy", False, True)],
)
def test_verdicts(name, magnitude, random, generator):
    layer = sc.diagnose({"w": law(name, generator)}).layers[0]
    assert (layer.magnitude, layer.random) == (magnitude, random), layer.notes


def test_the_fitted_uniform_is_the_one_drawn(generator):
    assert sc.diagnose({"w": law("uniform", generator)}).layers[0].k == pytest.approx(1.5, rel=0.02)


def test_pruned_entries_are_left_out(generator):
    weight = law("uniform", generator)
    weight[:, :32] = 0
    layer = sc.diagnose({"w": weight}).layers[0]
    assert layer.pruned_share == 0.5 and layer.magnitude and "50.0 % of the entries are zero" in layer.notes[-1]


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_scales_and_dtypes(scale, generator):
    weight = law("normal", generator).double()
    one, other = (sc.diagnose({"w": w}).layers[0] for w in (weight, weight * scale))
    assert other.kurtosis == pytest.approx(one.kurtosis) and other.ks_normal == pytest.approx(one.ks_normal)
    assert other.variance == pytest.approx(one.variance * scale**2, rel=1e-9)


def test_edges_and_report():
    flat = sc.diagnose({"w": torch.zeros(3, 3), "v": torch.ones(2, 2)})
    assert all(not layer.magnitude and not layer.random for layer in flat.layers)
    json.dumps(flat.rows())
    text = str(sc.diagnose(nn.Sequential(nn.Linear(10, 10), nn.Conv2d(2, 3, 3))))
    assert "0.weight" in text and "1.weight" in text
    with pytest.raises(EmptySelectionError, match="none of the 1 tensors"):
        sc.diagnose({"bias": torch.ones(3)})
    with pytest.raises(ParameterError, match="'w' holds NaN"):
        sc.diagnose({"w": torch.full((2, 2), float("nan"))})


def pruned(model, share, seed=0):
    sparse = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in sparse.parameters():
            if parameter.ndim > 1:
                limit = parameter.abs().flatten().kthvalue(max(1, int(share * parameter.numel()))).values
                parameter[parameter.abs() <= limit] = 0
    return sparse


@pytest.fixture
def linear():
    return nn.Sequential(nn.Linear(12, 20, bias=False), nn.Identity(), nn.Linear(20, 6, bias=False))


def test_layer_norms_are_exact_and_the_search_meets_the_exact_sup(linear, generator):
    """Without activations the sup-error is the norm of the difference of the products."""
    sparse = pruned(linear, 0.5)
    found = sc.measure_pruning(linear, sparse, epsilon=0.05, generator=generator)
    exact = torch.linalg.matrix_norm(
        linear[2].weight @ linear[0].weight - sparse[2].weight @ sparse[0].weight, 2
    ).item()
    assert found.sup_error <= exact * (1 + 1e-5) and found.sup_error > 0.97 * exact
    assert found.product_bound >= exact
    for layer, index in zip(found.layers, (0, 2), strict=True):
        change = torch.linalg.matrix_norm(linear[index].weight - sparse[index].weight, 2).item()
        assert layer.change == pytest.approx(change, rel=1e-5) and layer.kind == "matrix"
        total = linear[index].weight.numel()
        assert layer.pruned == pytest.approx(total ** (1 - layer.alpha)) == total // 2
        assert layer.magnitude_bound == pytest.approx(min(linear[index].weight.shape) ** -layer.alpha)
        assert layer.within == (change <= layer.magnitude_bound)


def test_probability_and_its_interval(linear, generator):
    """Uniform points of the ball: the interval holds the share of a second, independent sample of 20,000."""
    sparse = pruned(linear, 0.5)
    found = sc.measure_pruning(linear, sparse, epsilon=0.08, points=2_000, confidence=1 - 1e-7, generator=generator)
    x = torch.randn(20_000, 12)
    x = x / x.norm(dim=1, keepdim=True) * torch.rand(20_000, 1) ** (1 / 12)
    share = float(((sparse(x) - linear(x)).norm(dim=1) <= 0.08).float().mean())
    assert 0.01 < share < 0.99 and found.low < share < found.high
    assert found.low <= found.probability <= found.high


def test_clopper_pearson_covers():
    """Exact coverage over all outcomes of 30 trials is at least the confidence."""
    for p in (0.01, 0.3, 0.5, 0.97):
        intervals = [clopper_pearson(k, 30, confidence=0.9) for k in range(31)]
        chances = stats.binom.pmf(np.arange(31), 30, p)
        assert sum(c for c, (low, high) in zip(chances, intervals, strict=True) if low <= p <= high) >= 0.9


def test_convolutions_are_measured_on_their_maps():
    dense = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 3, padding=1, padding_mode="circular")
    )
    sparse, x = pruned(dense, 0.5), torch.randn(1, 2, 6, 6)
    with_map = sc.measure_pruning(dense, sparse, example=x, steps=5)
    kernels = sc.measure_pruning(dense, sparse)
    assert [layer.kind for layer in with_map.layers] == ["convolution, upper bound", "convolution"]
    assert all(a.change <= b.change * (1 + 1e-6) for a, b in zip(with_map.layers, kernels.layers, strict=True))
    assert with_map.sup_error > 0 and kernels.sup_error is None and with_map.product_bound is None


def test_models_are_untouched_and_nothing_pruned_is_no_change():
    dense = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).train()
    before = copy.deepcopy(dense.state_dict())
    found = sc.measure_pruning(dense, copy.deepcopy(dense), epsilon=0.1, points=10)
    assert found.sup_error == 0 and found.probability == 1 and all(layer.within is None for layer in found.layers)
    assert all(torch.equal(before[k], v) for k, v in dense.state_dict().items()) and dense.training
    assert all(p.grad is None for p in dense.parameters())


def test_bad_input(linear):
    with pytest.raises(StructureMismatch, match=r"0\.weight, 2\.weight missing or of another shape"):
        sc.measure_pruning(linear, nn.Linear(3, 3))
    with pytest.raises(ArgumentError, match="epsilon = -1"):
        sc.measure_pruning(linear, linear, epsilon=-1.0)
    with pytest.raises(ArgumentError, match="points = 0"):
        sc.measure_pruning(linear, linear, points=0)
    broken = copy.deepcopy(linear)
    with torch.no_grad():
        broken[0].weight[0, 0] = float("inf")
    with pytest.raises(ParameterError, match=r"'0\.weight' hold NaN or infinite"):
        sc.measure_pruning(linear, broken)
