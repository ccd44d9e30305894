"""The metric against the lifting: exact where it says so, an upper bound everywhere, digits
kept.
"""

from copy import deepcopy

import pytest
import torch
from torch import nn

import secateurs as sc
from paths.nets import TINY, tiny, zeroed
from secateurs.errors import StructureMismatch


def truth(a, b, x, part=slice(None)) -> float:
    left, right = sc.paths.lifting(a, x), sc.paths.lifting(b, x)
    pairs = zip(left.paths, right.paths, strict=True)
    # In rationals: of two nearly equal products floats keep few digits.
    return float(sum(abs(one.product - two.product) for one, two in pairs))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("name", TINY)
def test_exact_for_pruning_of_weights(name, share):
    model, x = tiny(name)
    pruned = deepcopy(model)
    for parameter in pruned.parameters():
        if parameter.ndim > 1:
            parameter.data *= torch.rand_like(parameter) >= share
    metric = sc.path_metric(model, pruned, x, split=True)
    assert metric.exact and metric.same_sign and not metric.is_upper_bound
    assert float(metric) == pytest.approx(truth(model, pruned, x), rel=1e-12, abs=1e-14)
    gap = float(sc.path_norm(model, x)) - float(sc.path_norm(pruned, x))
    assert float(metric) == pytest.approx(gap, rel=1e-9, abs=1e-12)
    assert float(metric.inputs) + float(metric.biases) == pytest.approx(
        float(metric), rel=1e-12, abs=1e-14
    )
    assert float(metric.per_output.sum()) == pytest.approx(float(metric), rel=1e-12)
    assert float(sc.path_metric(pruned, model, x)) == pytest.approx(float(metric), rel=1e-12)


@pytest.mark.parametrize("noise", [1e-6, 0.1, 3.0])
@pytest.mark.parametrize("name", TINY)
def test_an_upper_bound_for_any_two_parameter_vectors(name, noise):
    for seed in range(3):
        torch.manual_seed(seed)
        model, x = tiny(name)
        other = deepcopy(model)
        for parameter in other.parameters():
            parameter.data += noise * torch.randn_like(parameter)
        metric, distance = sc.path_metric(model, other, x), truth(model, other, x)
        assert float(metric) >= distance * (1 - 1e-12)
        assert metric.lower <= distance * (1 + 1e-12)
        if metric.exact:
            assert float(metric) == pytest.approx(distance, rel=1e-12)


@pytest.mark.parametrize("name", TINY)
def test_exact_where_the_paths_are_few(name, monkeypatch):
    """The oracle enumerates them in rationals; told apart edge by edge the value is larger."""
    model, x = tiny(name)
    other = deepcopy(model)
    for number, parameter in enumerate(other.parameters()):
        parameter.data *= 1 + 0.3 * (torch.arange(parameter.numel()) + number).sin().reshape(
            parameter.shape
        )
        parameter.data[torch.rand_like(parameter) < 0.2] *= -1
        parameter.data[torch.rand_like(parameter) < 0.2] = 0
    metric = sc.path_metric(model, other, x, split=True)
    distance = truth(model, other, x)
    assert metric.exact and float(metric) == pytest.approx(distance, rel=1e-12)
    assert float(metric.per_output.sum()) == pytest.approx(distance, rel=1e-12)
    assert float(metric.inputs) + float(metric.biases) == pytest.approx(distance, rel=1e-12)
    monkeypatch.setattr("secateurs.proof.path_streams.MOST", 0)
    by_edges = sc.path_metric(model, other, x)
    assert not by_edges.exact and float(by_edges) > distance * (1 + 1e-9)


def test_exact_for_any_change_in_one_layer():
    model, x = tiny("mlp")
    other = deepcopy(model)
    other[2].weight.data = torch.randn_like(other[2].weight)
    metric = sc.path_metric(model, other, x)
    assert metric.exact and not metric.same_sign
    assert float(metric) == pytest.approx(truth(model, other, x), rel=1e-12)


def test_a_tiny_difference_of_large_norms_keeps_its_digits():
    model, x = tiny("mlp")
    model[0].weight.data *= 1e8
    other = deepcopy(model)
    other[0].weight.data[0, 0] *= 1 - 2.0**-50
    metric = sc.path_metric(model, other, x)
    share = float(sc.path_costs(model, x)["0.weight"][0, 0])
    moved = float((model[0].weight[0, 0] - other[0].weight[0, 0]) / model[0].weight[0, 0])
    assert (
        metric.exact
        and 0 < moved < 1e-14
        and float(metric) == pytest.approx(share * moved, rel=1e-9)
    )


def test_opposite_signs_have_equal_liftings_and_different_functions():
    """ReLU(x) and −ReLU(−x): the same Φ, so that Theorem 3.1 needs its assumption."""
    nets = []
    for sign in (1.0, -1.0):
        net = nn.Sequential(
            nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False)
        ).double()
        net[0].weight.data.fill_(sign)
        net[2].weight.data.fill_(sign)
        nets.append(net)
    x = torch.ones(1, 1, dtype=torch.float64)
    metric = sc.path_metric(*nets, x)
    assert torch.equal(sc.paths.lifting(nets[0], x).phi, sc.paths.lifting(nets[1], x).phi)
    assert not metric.same_sign and metric.exact and float(metric) == 0
    assert float(nets[0](x) - nets[1](x)) == 1.0


def test_depth_never_overflows():
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(300)])
    for layer in model:
        layer.weight.data *= 1e4
    metric = sc.path_metric(model, zeroed(model, 0.1), torch.zeros(1, 4))
    assert metric.exact and float(metric) == float("inf") and 1024 < metric.log2 <= metric.first


@pytest.mark.parametrize("power", [-900, -600, 600, 900])
def test_weights_far_from_one_keep_their_exponent(power):
    """A weight whose own magnitude leaves the safe range hands its exponent on."""
    layers = [nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False)]
    model = nn.Sequential(*layers).double()
    x = torch.zeros(1, 3, dtype=torch.float64)
    other = zeroed(model, 0.4)
    before = sc.path_metric(model, other, x)
    for net in (model, other):
        net[0].weight.data *= 2.0**power
    after = sc.path_metric(model, other, x)
    assert after.log2 == pytest.approx(before.log2 + power, abs=1e-9)
    assert after.first == pytest.approx(before.first + power, abs=1e-9)


def test_different_structures_are_refused():
    x = torch.zeros(1, 3)
    plain = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    others = [
        nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(3, 3), nn.LeakyReLU(), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU(), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2), nn.ReLU()),
    ]
    for other in others:
        with pytest.raises(StructureMismatch, match="differ in structure"):
            sc.path_metric(plain, other, x)


def test_constants_in_the_code_count():
    """Each network is read with its own constants: 2(Wx + b) and 3(Wx + b) differ by Wx + b."""

    class Times(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.layer, self.factor = nn.Linear(2, 2), factor

        def forward(self, x):
            return self.layer(x) * self.factor

    double, triple = Times(2.0), Times(3.0)
    triple.load_state_dict(double.state_dict())
    difference = sum(float(p.detach().abs().sum()) for p in double.parameters())
    assert sc.path_metric(double, triple, torch.zeros(1, 2)) == pytest.approx(difference)
