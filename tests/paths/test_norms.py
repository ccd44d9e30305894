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
from secateurs.errors import ArgumentError, ParameterError
from secateurs.paths import factor_path_penalty, lifting


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


def factored(depth, *, biases=False):
    """A small network, its weights split at random into so many factors, and balanced."""
    torch.manual_seed(depth)
    layers = [nn.Linear(3, 4, bias=biases), nn.ReLU(), nn.Linear(4, 3, bias=biases)]
    model = nn.Sequential(*layers, nn.ReLU(), nn.Linear(3, 2, bias=biases)).double()
    loose, balanced = {}, {}
    for name, p in model.named_parameters():
        if p.ndim > 1:
            factors = torch.randn(depth, *p.shape, dtype=torch.float64)
            p.data.copy_(factors.prod(0))
            loose[name] = factors
            balanced[name] = p.detach().abs().pow(1 / depth).expand(depth, *p.shape)
    return model, loose, balanced


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("biases", [False, True])
def test_paths_of_factors_are_least_where_they_are_balanced(depth, biases):
    model, loose, balanced = factored(depth, biases=biases)
    x = torch.zeros(1, 3, dtype=torch.float64)
    found = lifting(model, x)
    from_inputs = found.phi[found.starts >= 0]
    least = math.log(float(from_inputs.abs().pow(2 / depth).sum()))
    assert float(factor_path_penalty(model, x, balanced)) == pytest.approx(least, rel=1e-12)
    apart = float(factor_path_penalty(model, x, loose)) - least
    assert apart > 1e-3 if depth > 1 else abs(apart) < 1e-12


def test_it_is_blind_to_rescaling_and_its_gradient_reaches_the_factors():
    model, loose, _ = factored(3)
    graph = sc.capture(model, torch.zeros(1, 3, dtype=torch.float64))
    leaves = {name: f.clone().requires_grad_() for name, f in loose.items()}
    before = factor_path_penalty(model, graph, leaves)
    before.backward()
    assert all(bool(f.grad.abs().gt(0).all()) for f in leaves.values())
    scale = torch.tensor([128.0, 1.0, 4096.0, 2.0], dtype=torch.float64).pow(1 / 3)
    loose["0.weight"] = loose["0.weight"] * scale[:, None]
    loose["2.weight"] = loose["2.weight"] / scale
    assert float(factor_path_penalty(model, graph, loose)) == pytest.approx(float(before))


def test_factors_of_any_precision_and_a_model_in_training():
    model, loose, _ = factored(2)
    x = torch.zeros(1, 3, dtype=torch.float64)
    short = {name: f.float() for name, f in loose.items()}
    found = factor_path_penalty(model.train(), x, short)
    assert model.training and found.dtype == torch.float64
    assert float(found) == pytest.approx(float(factor_path_penalty(model, x, loose)), rel=1e-6)
    noisy = nn.Sequential(*model, nn.Dropout(), nn.BatchNorm1d(2).double()).train()
    assert float(factor_path_penalty(noisy, x, loose)) == pytest.approx(
        float(factor_path_penalty(noisy.eval(), x, loose))
    )


def test_factors_that_do_not_fit_are_refused():
    model, loose, _ = factored(2)
    x = torch.zeros(1, 3, dtype=torch.float64)
    first = loose["0.weight"]
    for factors, text in (
        ({"0.weight": first}, "'2.weight' has none"),
        ({**loose, "0.weight": first[:, 1:]}, "shape"),
        ({**loose, "0.weight": first[:1]}, "D is"),
        ({**loose, "bias": first}, "no such weight"),
        ({**loose, "0.weight": first[:0]}, r"at least 1: '0.weight' has shape \(0, 4, 3\)"),
        ({name: f[:0] for name, f in loose.items()}, r"'4.weight' has shape \(0, 2, 3\)\.$"),
        ({}, "'4.weight' has none"),
        ({**loose, "0.weight": torch.tensor(1.0)}, r"'0.weight' has shape \(\)"),
    ):
        with pytest.raises(ArgumentError, match=text):
            factor_path_penalty(model, x, factors)
