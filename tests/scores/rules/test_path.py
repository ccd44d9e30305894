"""Scores on paths of networks as they come: with a map at the end, or with what no path covers."""

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import UnsupportedOperation


@pytest.mark.parametrize("score", ["path", "path-draw"])
@pytest.mark.parametrize("end", [nn.Softmax(-1), nn.LogSoftmax(-1), nn.Sigmoid(), nn.Tanh()])
def test_paths_end_in_front_of_a_map_without_weights(score, end):
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(1, 6)
    alone = sc.score(net, score, example=x)
    with_end = sc.score(nn.Sequential(*net, end), score, example=x)
    assert alone.keys() == with_end.keys() and len(alone) >= 2
    assert all(torch.equal(alone[name], with_end[name]) for name in alone)


@pytest.mark.parametrize("inside", [nn.Hardswish(), nn.Sigmoid(), nn.Softmax(-1)])
def test_what_no_path_covers_is_refused_by_its_name(inside):
    net = nn.Sequential(nn.Linear(6, 8), inside, nn.Linear(8, 3), nn.Softmax(-1))
    with pytest.raises(
        UnsupportedOperation, match=f"{type(inside).__name__.lower()}.* at 1 .*Replace"
    ):
        sc.score(net, "path", example=torch.randn(1, 6))
