"""Two streams take the maximum of a window."""

import copy

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.proof import METHODS
from tiny_networks import (
    KINDS,
    pruned,
    randomize,
)


def test_two_stream_takes_the_maximum_of_a_window():
    """max(3x₁, 3x₂) against max(2x₁, 2x₂) on |x| ≤ 1, then times 5: |f| ≤ 15, |f − g| ≤ 5,
    attained.
    """
    dense = nn.Sequential(
        nn.Conv1d(1, 1, 1, bias=False),
        nn.MaxPool1d(2),
        nn.Flatten(),
        nn.Linear(1, 1, bias=False),
    )
    sparse = copy.deepcopy(dense)
    for model, w in ((dense, 3.0), (sparse, 2.0)):
        nn.init.constant_(model[0].weight, w)
        nn.init.constant_(model[3].weight, 5.0)
    ball = {"around": torch.zeros(1, 1, 2), "radius": 1.0, "rounding": False}
    cert = sc.certify(dense, sparse, methods=METHODS.names(), **ball)
    assert cert.bounds["two-stream"] == 5.0 == cert.lower_bound
    assert cert.bounds["input-weighted"] == 10.0  # the window summed


@pytest.mark.parametrize("kind", ["fully connected", "residual", "batch norm", "u-shaped"])
def test_two_stream_is_the_path_metric_where_nothing_pools(kind, generator):
    make, shape = KINDS[kind]
    dense = randomize(make().double(), generator)
    ones = torch.ones(1, *shape, dtype=torch.float64)
    cert = sc.certify(
        dense,
        pruned(dense, generator),
        box=(-ones, ones),
        rounding=False,
        restarts=0,
        methods=METHODS.names(),
    )
    assert cert.bounds["two-stream"] == pytest.approx(cert.bounds["input-weighted"], rel=1e-12)
    assert cert.bounds["two-stream"] == pytest.approx(
        cert.bounds["path-metric-per-output"], rel=1e-12
    )
    metric = sc.path_metric(dense, pruned(dense, torch.Generator().manual_seed(0)), ones)
    assert metric > 0


@pytest.mark.parametrize("overlap", [False, True])
def test_with_max_pooling_two_stream_is_never_worse(overlap, generator):
    make, shape = KINDS["overlapping max-pool" if overlap else "max-pool"]
    for _ in range(3):
        dense = randomize(make(), generator)
        cert = sc.certify(
            dense,
            pruned(dense, generator),
            around=torch.zeros(1, *shape),
            radius=1.0,
            restarts=0,
            methods=METHODS.names(),
        )
        assert cert.bounds["two-stream"] < cert.bounds["input-weighted"]
