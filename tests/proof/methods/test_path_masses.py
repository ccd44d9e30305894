"""The path methods of `certify` are as tight as `path_metric`."""

import itertools

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.proof import path_metric


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
