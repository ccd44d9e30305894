"""The penalty is the logarithm of the norm, differentiable, and training with it lowers the
norm.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import secateurs as sc
from paths.nets import tiny
from secateurs.errors import ParameterError


@pytest.mark.parametrize("q", [1, 2])
def test_value_and_gradient(q):
    model, x = tiny("residual")
    graph = sc.capture(model, x)
    penalty = sc.path_norm_penalty(model, graph, q=q)
    assert float(penalty) == pytest.approx(
        math.log(float(sc.path_norm(model, graph, q=q))), rel=1e-12
    )
    penalty.backward()
    shares = sc.path_costs(model, graph, q=q, relative=True)
    weight = model.stem.weight
    assert torch.allclose(weight.grad * weight, shares["stem.weight"], rtol=1e-9)


def test_it_trains_and_leaves_the_mode_alone():
    model = nn.Sequential(
        nn.Linear(4, 8),
        nn.BatchNorm1d(8),
        nn.Dropout(0.1),
        nn.ReLU(),
        nn.Linear(8, 2),
    ).train()
    x, y = torch.randn(16, 4), torch.randint(2, (16,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    before = float(sc.path_norm_penalty(model, x))
    assert all(module.training for module in model.modules())
    graph = sc.capture(model.eval(), x)
    model.train()
    for _ in range(20):
        optimizer.zero_grad()
        (F.cross_entropy(model(x), y) + 0.5 * sc.path_norm_penalty(model, graph)).backward()
        optimizer.step()
    assert float(sc.path_norm_penalty(model, graph)) < before - 0.1


def test_finite_where_the_norm_overflows():
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(250)])
    for layer in model:
        layer.weight.data *= 1e3
    penalty = sc.path_norm_penalty(model, torch.zeros(1, 4))
    penalty.backward()
    assert math.isfinite(float(penalty)) and float(penalty) > 1024 * math.log(2)
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters())


def test_a_collapsed_network_has_no_logarithm():
    model = nn.Linear(2, 2, bias=False)
    model.weight.data.zero_()
    with pytest.raises(ParameterError, match="path norm is zero"):
        sc.path_norm_penalty(model, torch.zeros(1, 2))
    assert (
        sc.path_norm(model, torch.zeros(1, 2)) == 0
        and sc.log2_path_norm(model, torch.zeros(1, 2)) == -math.inf
    )
