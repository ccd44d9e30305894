"""The linearised features: Jacobian, probabilities and expectations against plain autograd and enumeration."""

import copy
import math

import pytest
import torch
from torch import nn

from secateurs.errors import ArgumentError, TheoryError
from secateurs.theory import NtkConstants, lemma_43, ntk_sketch, sketch_mask, theorem_72

from .monte_carlo import assert_mean, mean_margin


@pytest.fixture
def model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.BatchNorm1d(5), nn.Linear(5, 2))


def jacobian(model, x, names):
    """Row by row with torch.autograd.grad: the oracle."""
    model = copy.deepcopy(model).eval()
    parameters = [dict(model.named_parameters())[name] for name in names]
    rows = [torch.autograd.grad(y, parameters, retain_graph=True) for y in model(x).flatten()]
    return torch.stack([torch.cat([g.flatten() for g in row]) for row in rows]).double(), torch.cat(
        [p.detach().flatten() for p in parameters]
    ).double()


def test_expectations_are_those_of_the_jacobian(model):
    x, names = torch.randn(6, 3), ["0.weight", "3.weight"]
    J, theta = jacobian(model, x, names)
    found = ntk_sketch(model, x, s=7, chunk_size=5)
    p = torch.cat([found.probabilities[name].flatten() for name in names])
    scores = J.norm(dim=0) * theta.abs()
    torch.testing.assert_close(p, scores / scores.sum(), rtol=1e-5, atol=1e-8)
    assert found.expected == pytest.approx(lemma_43(J.T, theta, p, s=7), rel=1e-4)
    assert found.energy == pytest.approx(float((J @ theta).square().sum()), rel=1e-4)
    assert found.frobenius == pytest.approx(float(J.norm()), rel=1e-5)
    assert found.expected < found.uniform


def test_expectation_by_simulation(model, generator):
    """10,000 masks; squared errors are at most that of the worst single draw (convexity): the margin is proven."""
    x = torch.randn(6, 3)
    J, theta = jacobian(model, x, ["0.weight", "3.weight"])
    found = ntk_sketch(model, x, s=7)
    p = torch.cat([value.flatten() for value in found.probabilities.values()]).double()
    p = p / p.sum()
    masks = torch.stack([sketch_mask(p, 7, generator) for _ in range(10_000)])
    errors = ((theta * (1 - masks)) @ J.T).square().sum(1)
    width = float((J * (theta / p) - (J @ theta)[:, None]).square().sum(0).max())
    assert_mean(errors, found.expected, width)
    assert abs(float(errors.mean()) - found.uniform) > mean_margin(errors.numpy(), width)


def test_the_model_is_untouched(model):
    before = copy.deepcopy(model.state_dict())
    model.train()
    ntk_sketch(model, torch.randn(4, 3), s=2)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_a_trained_model_uses_the_masks_of_the_start(model):
    x, trained = torch.randn(6, 3), copy.deepcopy(model)
    with torch.no_grad():
        trained[0].weight += 0.1
    names = ["0.weight", "3.weight"]
    J, theta = jacobian(trained, x, names)
    found = ntk_sketch(model, x, s=3, trained=trained)
    p = torch.cat([found.probabilities[name].flatten() for name in names])
    assert found.expected == pytest.approx(lemma_43(J.T, theta, p / p.sum(), s=3), rel=1e-4)


def test_theorem_72_bounds_the_exact_expectation_and_print_is_larger(model):
    """With K ≥ ‖J‖_F and θt within 3KR0/λ of θ0, for 20 random directions."""
    x, names = torch.randn(6, 3), ["0.weight", "3.weight"]
    J, theta = jacobian(model, x, names)
    constants = NtkConstants(K=3 * float(J.norm()), R0=0.01, lambda_min=1.0)
    bound = theorem_72(theta, J.norm(dim=0), constants=constants, s=4)
    assert ntk_sketch(model, x, s=4, constants=constants).bound == pytest.approx(bound, rel=1e-4)
    assert theorem_72(theta, J.norm(dim=0), constants=constants, s=4, as_printed=True) > bound
    radius = 3 * constants.K * constants.R0 / constants.lambda_min
    for _ in range(20):
        trained = copy.deepcopy(model)
        step = torch.randn(len(theta))
        step *= radius / step.norm()
        with torch.no_grad():
            trained[0].weight += step[:15].view(5, 3)
            trained[3].weight += step[15:].view(2, 5)
        assert float(jacobian(trained, x, names)[0].norm()) <= constants.K
        assert ntk_sketch(model, x, s=4, trained=trained).expected <= bound


def test_theorem_72_by_simulation(model, generator):
    """Its left side by 10,000 masks of the start on the trained network, against the expectation and the bound."""
    x, trained, names = torch.randn(6, 3), copy.deepcopy(model), ["0.weight", "3.weight"]
    start, theta0 = jacobian(model, x, names)
    constants = NtkConstants(K=3 * float(start.norm()), R0=0.01, lambda_min=1.0)
    with torch.no_grad():
        trained[3].weight += 3 * constants.K * constants.R0 / math.sqrt(10)
    J, theta = jacobian(trained, x, names)
    p = start.norm(dim=0) * theta0.abs()
    p = p / p.sum()
    masks = torch.stack([sketch_mask(p, 4, generator) for _ in range(10_000)])
    errors = ((theta * (1 - masks)) @ J.T).square().sum(1).numpy()
    width = float((J * (theta / p) - (J @ theta)[:, None]).square().sum(0).max())
    assert_mean(errors, ntk_sketch(model, x, s=4, trained=trained).expected, width)
    assert errors.mean() + mean_margin(errors, width) < theorem_72(theta0, start.norm(dim=0), constants=constants, s=4)


def test_theorem_72_frozen():
    """By hand: K³·‖θ‖₁·F(J)·(‖θ‖₁ + 9K²F(θ) + 6√2·K) = 8·2·2·(2 + 72 + 16.97); as printed K⁴, K³."""
    one, constants = torch.ones(2), NtkConstants(K=2.0, R0=1.0, lambda_min=1.0)
    assert theorem_72(one, one, constants=constants, s=1) == pytest.approx(32 * (74 + 12 * math.sqrt(2)))
    printed = theorem_72(one, one, constants=constants, s=1, as_printed=True)
    assert printed == pytest.approx(32 * (2 + 288 + 48 * math.sqrt(2)))


def test_bad_input_is_named(model):
    x = torch.randn(2, 3)
    with pytest.raises(ArgumentError, match="s = 0"):
        ntk_sketch(model, x, 0)
    theta, columns = torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0])
    with pytest.raises(TheoryError, match="1 zero entries or columns in theta_0"):
        theorem_72(theta, columns, constants=NtkConstants(K=2.0, R0=1.0, lambda_min=1.0), s=1)
    with pytest.raises(TheoryError, match="K = 1 is below"):
        theorem_72(torch.ones(2), columns, constants=NtkConstants(K=1.0, R0=1.0, lambda_min=1.0), s=1)
    with pytest.raises(ArgumentError, match="lambda_min = 0"):
        theorem_72(torch.ones(2), columns, constants=NtkConstants(K=2.0, R0=1.0, lambda_min=0.0), s=1)
    zero = nn.Linear(3, 2)
    nn.init.zeros_(zero.weight)
    with pytest.raises(TheoryError, match="sum to 0"):
        ntk_sketch(zero, x, 1)
    with pytest.raises(TheoryError, match="probability 0"):
        half = nn.Linear(3, 1)
        full = copy.deepcopy(half)
        with torch.no_grad():
            half.weight[0, 0] = 0
        ntk_sketch(half, x, 1, trained=full)
