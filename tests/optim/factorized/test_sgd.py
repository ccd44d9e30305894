"""What the factors minimise: the lasso at depth 2, L_{2/D} beyond."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from optim.factorized.nets import batch, make, net, regression
from secateurs.optim import FactorizedSGD
from secateurs.optim.factorized.maths import EPS, StepRule, product, step

linear_model = pytest.importorskip("sklearn.linear_model")


@pytest.mark.parametrize("strength", [0.02, 0.1, 0.5])
def test_depth_2_is_the_lasso_of_scikit_learn(strength):
    """Mean squared error + λ‖w‖₁; scikit-learn minimises MSE/2 + α‖w‖₁, so α = λ/2."""
    x, y = regression()
    layer = nn.Linear(12, 1, bias=False, dtype=torch.float64)
    optimizer = FactorizedSGD(
        layer.parameters(),
        lr=0.05,
        momentum=0.9,
        depth=2,
        strength=strength,
        generator=torch.Generator().manual_seed(0),
    )
    for _ in range(4000):
        optimizer.zero_grad()
        (layer(x)[:, 0] - y).square().mean().backward()
        optimizer.step()
    optimizer.collapse_()
    expected = (
        linear_model.Lasso(alpha=strength / 2, fit_intercept=False, tol=1e-12, max_iter=100_000)
        .fit(x, y)
        .coef_
    )
    torch.testing.assert_close(
        layer.weight[0].detach(), torch.from_numpy(expected), atol=1e-4, rtol=0
    )
    assert ((layer.weight[0] == 0) == torch.from_numpy(expected == 0)).all()


@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("pull", [0.3, 1.0, 2.0])
def test_depth_d_finds_the_minimiser_of_the_2_over_d_norm(depth, pull):
    """(w − a)²/2 + λ|w|^{2/D} on a line, against a fine grid; gradient descent from the far side
    finds the minimum.
    """
    strength = 0.2
    grid = torch.linspace(0, 3, 300_001, dtype=torch.float64)
    values = (grid - pull).square() / 2 + strength * grid.abs().pow(2 / depth)
    minima = grid[1:-1][(values[1:-1] < values[:-2]) & (values[1:-1] < values[2:])]
    expected = float(minima.max()) if len(minima) else 0.0
    factors = torch.full((depth, 1), 3.0 ** (1 / depth), dtype=torch.float64)
    momenta, weight, rule = (
        torch.zeros_like(factors),
        factors.prod(0),
        StepRule(lr=0.02, decay=2 * strength / depth),
    )
    for _ in range(5000):
        factors, momenta, weight = step(factors, momenta, weight - pull, rule)
    assert float(weight) == pytest.approx(expected, abs=2e-5)
    if expected == 0:
        assert float(weight) < EPS


class Explicit:
    """The oracle: factors as parameters of their own, autograd through the product, torch's SGD."""

    def __init__(self, model, optimizer, depth, **options):
        self.model = copy.deepcopy(model)
        self.factors = {
            n: [nn.Parameter(f.clone()) for f in optimizer.factors(n)]
            for n, _ in model.named_parameters()
        }
        self.sgd = torch.optim.SGD([f for fs in self.factors.values() for f in fs], **options)

    def step(self, x, y):
        weights = {
            name: math.prod(factors[1:], start=factors[0]) for name, factors in self.factors.items()
        }
        self.sgd.zero_grad()
        F.cross_entropy(torch.func.functional_call(self.model, weights, (x,)), y).backward()
        self.sgd.step()

    def distance(self, optimizer):
        pairs = [
            (torch.stack(list(fs)), optimizer.factors(name)) for name, fs in self.factors.items()
        ]
        return max(float((a.detach() - b).abs().max()) for a, b in pairs)


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_equals_explicit_factors_over_100_steps(fused, depth, momentum, nesterov, dtype, bound):
    model = net(dtype)
    optimizer = make(model, lr=0.05, depth=depth, momentum=momentum, nesterov=nesterov, fused=fused)
    oracle = Explicit(
        model,
        optimizer,
        depth,
        lr=0.05,
        momentum=momentum,
        nesterov=nesterov,
        weight_decay=2e-3 / depth,
    )
    for seed in range(100):
        x, y = batch(dtype, seed)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        oracle.step(x, y)
    assert oracle.distance(optimizer) < bound
    # It can fail.
    assert (
        float(optimizer.factors("0.weight").sub(oracle.factors["0.weight"][0].detach()).abs().max())
        > bound
    )


def one_step_of_print(factors, x, y, *, lr, strength):
    """Algorithm 2, line 15: ω − (η/|B|) ∇(Σ losses + (λ/D) Σ‖ω_d‖²)."""
    factors = factors.clone().requires_grad_()
    losses = F.mse_loss(x @ product(factors).T, y, reduction="sum")
    penalty = strength / len(factors) * factors.square().sum()
    (gradient,) = torch.autograd.grad(losses + penalty, factors)
    return product(factors - lr / len(x) * gradient).detach()


def our_step(start, x, y, *, lr, strength):
    layer = nn.Linear(6, 1, bias=False, dtype=torch.float64)
    optimizer = FactorizedSGD(layer.parameters(), lr=lr, strength=strength, depth=3, momentum=0)
    optimizer.set_factors(layer.weight, start)
    F.mse_loss(layer(x), y, reduction="sum").div(len(x)).backward()
    optimizer.step()
    return layer.weight.detach()


def test_erratum_algorithm_2_divides_the_penalty_by_the_size_of_the_batch():
    """Every example twice: the mean loss is the same, and so is λ in (3) and (14). As printed the
    penalty counts half.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(9, 6, generator=generator, dtype=torch.float64)
    x, y = drawn[:8], drawn[:8].sum(1, keepdim=True)
    start = 0.5 + torch.rand(3, 1, 6, generator=generator, dtype=torch.float64)
    options = {"lr": 0.01, "strength": 0.3}
    twice = x.repeat(2, 1), y.repeat(2, 1)

    ours = our_step(start, x, y, **options)
    torch.testing.assert_close(our_step(start, *twice, **options), ours)

    printed = one_step_of_print(start, x, y, **options)
    doubled = one_step_of_print(start, *twice, **options)
    assert float((printed - doubled).abs().max()) > 1e-4
    # Ours is the paper's step with λ multiplied by |B|: the division is all that differs.
    mended = one_step_of_print(start, x, y, lr=0.01, strength=0.3 * len(x))
    torch.testing.assert_close(ours, mended)


def test_a_frozen_parameter_is_no_change_from_outside():
    """Every weight is compared where the sample of the compiled step has seen a change through
    `.data`: one that waits for its first gradient has no factors to be compared with.
    """
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].weight.requires_grad_(False)
    optimizer = FactorizedSGD(model.named_parameters(), lr=0.1, depth=2, strength=1e-4)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    model[1].weight.data[0] = 0.0
    with torch.no_grad():
        optimizer._follow_changes_(every=True)
    assert not optimizer.factors("1.weight")[:, 0].any()
