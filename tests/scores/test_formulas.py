"""Scores against formulas derived by hand on a two-layer net f(x) = vᵀ·relu(Wx).

W = [[1, -2], [3, 1]], v = [2, -1], x = (1, 1): Wx = (-1, 4), h = relu(Wx) = (0, 4), f = -4.
"""

import pytest
import torch
from torch import nn

import secateurs as sc


def two_layers(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False)).to(dtype)
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


def test_magnitude():
    check(sc.score(two_layers(), "magnitude"), [[1.0, 2.0], [3.0, 1.0]], [[2.0, 1.0]])


def test_snip():
    """L = (f - y)²/2 with y = -1: ∂L/∂f = f - y = -3. ∂L/∂v = -3·h = (0, -12); ∂L/∂W = -3·v ⊙ [Wx > 0] xᵀ:
    the first unit is off, the second has -3·(-1)·(1, 1) = (3, 3). Times w: W: (0, 0), (9, 3); v: (0, 12)."""
    scores = sc.score(two_layers(), "snip", batch=(X, Y), loss=half_square)
    check(scores, [[0.0, 0.0], [9.0, 3.0]], [[0.0, 12.0]])


def test_snip_of_the_reference_sums_to_one():
    scores = sc.score(two_layers(), "snip", batch=(X, Y), loss=half_square, convention="reference")
    check(scores, [[0.0, 0.0], [9 / 24, 3 / 24]], [[0.0, 12 / 24]])


def test_synflow():
    """|W|1 = (3, 4), R = |v|·(3, 4) = 2·3 + 1·4 = 10. Score of v_i: |v_i|·h_i = (6, 4); of W_ij: |v_i|·|W_ij|·1."""
    check(sc.score(two_layers(), "synflow", example=X), [[2.0, 4.0], [3.0, 1.0]], [[6.0, 4.0]])


@pytest.mark.parametrize("name", ["magnitude", "random"])
def test_scores_without_data_need_nothing(name):
    assert list(sc.score(two_layers(), name)) == ["0.weight", "2.weight"]
