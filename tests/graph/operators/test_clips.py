"""Clips and PReLU as the relus that they are: what holds for ReLU networks holds for them."""

import copy

import pytest
import torch
from torch import nn

import secateurs as sc

BENT = {
    "relu6": nn.ReLU6,
    "hardtanh": lambda: nn.Hardtanh(-0.5, 0.7),
    "one slope": nn.PReLU,
    "a slope each": lambda: nn.PReLU(8),
    "hardsigmoid": nn.Hardsigmoid,
}


def pair(kind):
    torch.manual_seed(0)
    act = BENT[kind]()
    net = nn.Sequential(
        nn.Linear(3, 8), act, nn.Linear(8, 8), copy.deepcopy(act), nn.Linear(8, 2)
    ).eval()
    with torch.no_grad():
        net[0].weight.mul_(4)
        if isinstance(act, nn.PReLU):
            # Beyond 1 and below 0 as well.
            net[1].weight.uniform_(-0.5, 1.5)
            net[3].weight.uniform_(-0.5, 1.5)
    sparse = copy.deepcopy(net)
    sc.prune_(sparse, "magnitude", sparsity=0.3)
    return net, sparse


@pytest.mark.parametrize("kind", BENT)
def test_certificates_hold_and_are_not_vacuous(kind):
    net, sparse = pair(kind)
    cert = sc.certify(net, sparse, box=(-torch.ones(3), torch.ones(3)))
    points = torch.rand(20_000, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        seen = float((net(points) - sparse(points)).abs().max())
    assert seen <= cert.bound <= 12 * seen


@pytest.mark.parametrize("kind", BENT)
def test_the_path_metric_bounds_the_change(kind):
    net, sparse = pair(kind)
    x = torch.rand(2000, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        seen = float((net(x) - sparse(x)).abs().sum(1).max())
    assert seen <= float(sc.path_metric(net, sparse, x[:1])) <= float(sc.path_norm(net, x[:1]))


@pytest.mark.parametrize("kind", BENT)
def test_costs_are_zeroing_differences(kind):
    net, _ = pair(kind)
    x = torch.zeros(1, 3)
    costs = sc.path_costs(net, x)["2.weight"]
    whole = float(sc.path_norm(net, x))
    for place in ((0, 0), (5, 3)):
        other = copy.deepcopy(net)
        with torch.no_grad():
            other[2].weight[place] = 0
        lost = whole - float(sc.path_norm(other, x))
        assert float(costs[place]) == pytest.approx(lost, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("kind", BENT)
def test_what_normalising_moves_keeps_the_function(kind):
    net, _ = pair(kind)
    x = torch.randn(500, 3)
    moved = copy.deepcopy(net)
    sc.normalize_(moved, x[:1])
    with torch.no_grad():
        assert torch.allclose(moved(x), net(x), atol=1e-5)


@pytest.mark.parametrize("kind", BENT)
def test_half_of_the_channels_go_as_before(kind):
    """Channels are read with a clip as one operation: none is kept for its two relus."""
    net, _ = pair(kind)
    x = torch.randn(500, 3)
    sc.prune_channels_(net, x[:1], channels=0.5)
    small = sc.compact(net, x[:1])
    assert small[0].out_features == 4 and small[2].out_features <= 4
    with torch.no_grad():
        assert torch.allclose(small(x), net(x), atol=1e-5)
