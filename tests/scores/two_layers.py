"""A network of two layers whose scores are derived by hand: f(x) = vᵀ·relu(Wx).

W = [[1, -2], [3, 1]], v = [2, -1], x = (1, 1): Wx = (-1, 4), h = relu(Wx) = (0, 4), f = -4.
"""

import torch
from torch import nn


def two_layers(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False)).to(
        dtype
    )
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, -2.0], [3.0, 1.0]]))
        net[2].weight.copy_(torch.tensor([[2.0, -1.0]]))
    return net


X = torch.ones(1, 2, dtype=torch.float64)
Y = torch.full((1, 1), -1.0, dtype=torch.float64)


def half_square(output, target):
    return (output - target).square().mean() / 2


def check(scores, first, second):
    torch.testing.assert_close(scores["0.weight"], torch.tensor(first, dtype=torch.float64))
    torch.testing.assert_close(scores["2.weight"], torch.tensor(second, dtype=torch.float64))
