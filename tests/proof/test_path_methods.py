"""The path methods of `certify` are as tight as `path_metric`."""

import itertools

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.base.random import generator
from secateurs.proof import path_metric
from secateurs.proof.path_methods import path_distance
from secateurs.proof.problem import OWN_UNIT, read_problem


def networks(seed, sizes=(4, 8, 8, 3)):
    """Two networks of one sign pattern: some weights grow, others shrink."""
    torch.manual_seed(seed)
    pair = []
    for _ in range(2):
        layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
        pair.append(nn.Sequential(*[x for one in layers for x in (one, nn.ReLU())][:-1]))
    f, g = pair
    with torch.no_grad():
        for p, q in zip(f.parameters(), g.parameters(), strict=True):
            q.copy_(p * (0.5 + torch.rand(p.shape)))
    return f.eval(), g.eval()


@pytest.mark.parametrize("seed", range(10))
def test_certify_uses_the_value_of_the_path_metric(seed):
    f, g = networks(seed)
    x = torch.zeros(1, 4)
    metric = path_metric(f, g, x)
    cert = sc.certify(f, g, box=(x - 1, x + 1), methods=["path-metric"], norm=1)
    assert cert.bound == pytest.approx(float(metric), rel=1e-9)
    # Theorem C.1 per output, at inputs of size one.
    each = sc.certify(f, g, box=(x - 1, x + 1), methods=["path-metric-per-output"])
    assert torch.all(each.per_output <= metric.per_output * (1 + 1e-9))
    assert cert.lower_bound <= cert.bound


def test_never_above_the_bound_of_two_streams_without_pools():
    """|w'|·d + |w − w'|·m, which the path methods gave before."""
    for seed in range(10):
        f, g = networks(seed)
        x = torch.zeros(1, 4)
        box = (x - 1, x + 1)
        cert = sc.certify(f, g, box=box, methods=["input-weighted", "two-stream"])
        assert cert.bounds["input-weighted"] <= cert.bounds["two-stream"] * (1 + 1e-12)


def test_the_path_metric_is_taken_path_by_path_where_that_is_less():
    """Of two networks that share their signs and are neither below the other: 2.4 for 2.8 here."""
    g = generator(3, "few paths")
    dense = torch.nn.Sequential(
        torch.nn.Linear(3, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2)
    ).double()
    sparse = torch.nn.Sequential(
        torch.nn.Linear(3, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2)
    ).double()
    for a, b in zip(dense.parameters(), sparse.parameters(), strict=True):
        a.data = torch.randn(a.shape, generator=g, dtype=torch.float64)
        b.data = a.data * (0.6 + 0.8 * torch.rand(a.shape, generator=g, dtype=torch.float64))
    x = torch.zeros(1, 3, dtype=torch.float64)
    asked = {"around": x, "radius": 1.0, "methods": ["path-metric", "path-metric-per-output"]}
    cert = sc.certify(dense, sparse, **asked)
    paths = [sc.paths.lifting(net, x).paths for net in (dense, sparse)]
    exact = sum(abs(a.product - b.product) for a, b in zip(*paths, strict=True))
    problem = read_problem(dense, sparse, x, unit=OWN_UNIT)
    ones = torch.ones(1, 1, 3, dtype=torch.float64)
    by_edges = float(path_distance(problem, fed=ones, biases=True).sum())
    assert float(exact) <= cert.bounds["path-metric"] <= float(exact) * (1 + 1e-12)
    assert cert.bounds["path-metric"] < 0.95 * by_edges
    assert cert.bounds["path-metric"] >= cert.lower_bound
