"""The mathematics of factors: gradients against autograd, and the lemmas of the paper."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secateurs.optim.factorized.maths import (
    StepRule,
    balanced,
    is_balanced,
    minimal_penalty,
    misalignment,
    others,
    penalty,
    product,
    step,
)

DEPTHS = (2, 3, 4, 5, 8)


def draw(depth, *shape, dtype=torch.float64, scale=1.0):
    return (
        torch.randn(depth, *shape, dtype=dtype, generator=torch.Generator().manual_seed(depth))
        * scale
    )


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 4), (2, 3, 3, 3)])
def test_the_step_follows_the_gradient_of_autograd(depth, shape):
    factors, strength = draw(depth, *shape).requires_grad_(), 0.3
    weight = factors.prod(0)
    loss = (weight.sin()).sum() + strength / depth * factors.square().sum()
    (expected,) = torch.autograd.grad(loss, factors)
    rule = StepRule(lr=1.0, momentum=0.0, decay=2 * strength / depth, freeze=0.0)
    before = factors.detach()
    moved, _, _ = step(before, torch.zeros_like(before), weight.detach().cos(), rule)
    torch.testing.assert_close(before - moved, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("depth", DEPTHS)
def test_others_never_divides(depth):
    factors = draw(depth, 6)
    factors[0, 0] = 0
    factors[:, 1] = 0
    rest = others(factors)
    for d in range(depth):
        expected = torch.stack([factors[k] for k in range(depth) if k != d]).prod(0)
        torch.testing.assert_close(rest[d], expected, rtol=1e-12, atol=0)
    assert rest[0, 0] != 0
    assert not rest[:, 1].any()


@pytest.mark.parametrize("depth", DEPTHS)
def test_lemma_1_balanced_factors_have_the_least_penalty(depth):
    weight = draw(1, 50)[0]
    factors = balanced(weight, depth)
    torch.testing.assert_close(product(factors), weight)
    assert is_balanced(factors)
    torch.testing.assert_close(penalty(factors), minimal_penalty(weight, depth))
    assert float(misalignment(factors)) < 1e-12
    scales = draw(depth, 50).exp()
    scales /= scales.prod(0).pow(1 / depth)
    assert penalty(factors * scales) > penalty(factors)


@pytest.mark.parametrize("weight", [9.0, 0.25, -4.0])
def test_equation_6_the_factors_of_least_norm(weight):
    """(±√|w|, ±√|w|): of all pairs with the product w on a grid through them only these."""
    size = math.sqrt(abs(weight))
    first = torch.linspace(-3 * size, 3 * size, 601, dtype=torch.float64)
    first = first[first != 0]
    pairs = torch.stack([first, weight / first])
    costs = torch.stack([penalty(pair) for pair in pairs.T])
    least = pairs[:, costs <= abs(weight) * (1 + 1e-12)]
    torch.testing.assert_close(least.abs(), torch.full((2, 2), size, dtype=torch.float64))
    found = balanced(torch.tensor([weight], dtype=torch.float64), 2)
    assert float(penalty(found)) == pytest.approx(float(costs.min())) == abs(weight)
    assert any(torch.allclose(found[:, 0], pair) for pair in least.T)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=6))
def test_misalignment_is_never_negative(values):
    factors = torch.tensor(values, dtype=torch.float64)[:, None]
    assert float(misalignment(factors)) >= 0
    difference = penalty(factors) - minimal_penalty(product(factors), len(values))
    assert float(misalignment(factors)) == pytest.approx(
        max(0.0, float(difference)), rel=1e-6, abs=1e-6
    )


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1.0, 1e10])
def test_misalignment_keeps_its_sign_at_any_scale(scale):
    factors = draw(3, 20) * scale
    assert float(misalignment(factors)) > 0
    assert float(misalignment(balanced(product(factors), 3))) <= 1e-12 * float(penalty(factors))


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("nesterov", [False, True])
def test_lemma_4_balanced_stays_balanced_and_zero_absorbs(depth, nesterov):
    weight = draw(1, 40)[0]
    weight[:5] = 0
    factors, momenta = (
        balanced(weight, depth),
        torch.zeros(depth, 40, dtype=torch.float64),
    )
    rule = StepRule(lr=0.01, decay=0.02, momentum=0.9, nesterov=nesterov)
    for seed in range(50):
        grad = torch.randn(40, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        factors, momenta, weight = step(factors, momenta, grad, rule)
    assert is_balanced(factors, tolerance=1e-9)
    assert not weight[:5].any()
    assert not factors[:, :5].any()
    assert weight[5:].all()


def test_lemma_4_is_about_plain_sgd():
    """Balanced factors that meet with unbalanced velocities stay balanced without momentum only."""

    def drift(momentum):
        weight = draw(1, 40)[0]
        factors = balanced(weight, 2)
        velocities = torch.zeros(2, 40, dtype=torch.float64)
        velocities[0] = 0.1 * draw(2, 40)[1]
        rule = StepRule(lr=0.05, decay=0.05, momentum=momentum)
        for _ in range(16):
            factors, velocities, weight = step(factors, velocities, weight - 1, rule)
        return float(misalignment(factors))

    assert drift(0.0) <= 1e-12
    assert drift(0.9) > 1e-2


def test_lemma_2_standard_factors_vanish():
    """The standard deviation of a product of D standard initialisations is σ^D."""
    sigma = 1 / math.sqrt(100)
    products = [product(draw(depth, 100_000) * sigma).std() for depth in (1, 2, 3, 4)]
    for depth, deviation in enumerate(products, start=1):
        # kurtosis 3^D: the relative error of a standard deviation is about sqrt((3^D - 1) / 4n);
        # six of them
        assert float(deviation) == pytest.approx(
            sigma**depth, rel=6 * math.sqrt((3**depth - 1) / 4e5)
        )


def through_layers(depth, width, layers, deviation):
    """Mean squares of the outputs of each layer over that of its inputs (linear layers of products
    of factors, 4,000 inputs' worth of entries each), in the logarithm of the width.
    """
    draws = torch.Generator().manual_seed(width)
    x = torch.randn(width, 4_000 // width, dtype=torch.float64, generator=draws)
    start, seen = float(x.square().mean()), []
    for _ in range(layers):
        weight = torch.randn(depth, width, width, dtype=torch.float64, generator=draws)
        x = product(weight * deviation) @ x
        seen.append(math.log(float(x.square().mean()) / start) / math.log(width))
    return seen


@pytest.mark.parametrize("depth", [2, 3])
def test_lemma_2_activations_vanish_in_width_and_layers(depth):
    """Equation (12): each layer divides the variance by n^{D−1}, which is n^{−L} at D = 2."""
    for width in (50, 200):
        standard = through_layers(depth, width, 4, width**-0.5)
        # A layer's factor has a relative deviation below √(3^D)/n; ten of them for four layers.
        error = math.log1p(10 * 3 ** (depth / 2) / width) / math.log(width)
        for layer, exponent in enumerate(standard, start=1):
            assert exponent == pytest.approx(-(depth - 1) * layer, abs=layer * error)
        # With σ^{1/D} a factor, as equation (11) asks for, nothing vanishes.
        matched = through_layers(depth, width, 4, width ** (-0.5 / depth))
        assert matched[-1] == pytest.approx(0, abs=4 * error)


def lifted(target, factors):
    """Balanced factors of `target`, with the signs of balanced `factors` where they have one."""
    new = balanced(target, len(factors))
    return torch.where(factors == 0, new, new.abs() * factors.sign())


def test_lemma_3_near_balanced_factors_lie_balanced_factors_of_every_weight_near_theirs():
    """In 10,000 draws of ŵ, ε and w' within the δ of the proof, to its edge."""
    draws = torch.Generator().manual_seed(0)

    def uniform(*shape):
        return torch.rand(*shape, dtype=torch.float64, generator=draws)

    missed = 0
    for _ in range(500):
        depth, epsilon = int(2 + 5 * uniform(())), 10 ** (-6 * float(uniform(())))
        entries = 5
        weight = uniform(20, entries) * 10 ** (4 - 8 * uniform(20, entries))
        weight[uniform(20, entries) < 0.2] = 0
        signs = (uniform(depth, 20, entries) < 0.5) * 2.0 - 1
        factors = weight.pow(1 / depth) * signs
        weight = product(factors)
        # ||w'|^{1/D} − |ŵ|^{1/D}| < ε/√(Dp) for |w' − ŵ| < δ; δ ≤ |ŵ| keeps the sign.
        size, reach = weight.abs().pow(1 / depth), epsilon / math.sqrt(depth * entries)
        below = weight.abs() - (size - reach).clamp_min(0).pow(depth)
        above = (size + reach).pow(depth) - weight.abs()
        delta = torch.where(weight == 0, above, torch.minimum(below, above)).amin(1, keepdim=True)
        step_ = 2 * uniform(20, entries) - 1
        step_[:, 0] = 1
        target = weight + step_ * delta * (1 - 1e-9)
        near = lifted(target, factors)
        assert is_balanced(near, tolerance=1e-12)
        torch.testing.assert_close(product(near), target, rtol=1e-12, atol=1e-300)
        missed += int(((near - factors).flatten(2).square().sum((0, 2)).sqrt() >= epsilon).sum())
    assert missed == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_step_flushes_denormals_and_buries_the_dead(dtype):
    tiny = torch.finfo(dtype).tiny
    factors = torch.full((3, 4), 1e-14, dtype=dtype)
    factors[:, 1] = tiny / 2
    factors[:, 2] = 0.1
    # A zero that is not dead.
    factors[:, 3] = torch.tensor([0.0, 0.5, 0.5], dtype=dtype)
    rule = StepRule(lr=0.1, decay=0.0, momentum=0.9)
    moved, momenta, weight = step(
        factors, torch.full_like(factors, tiny / 2), torch.ones(4, dtype=dtype), rule
    )
    assert not moved[:, :2].any()
    assert not momenta[:, :2].any()
    assert weight[2] > 0
    assert moved[0, 3] < 0


def test_frozen_value():
    factors, momenta, weight = step(
        torch.tensor([[0.5, -1.0], [0.25, 2.0]]),
        torch.tensor([[0.1, 0.0], [0.0, 0.0]]),
        torch.tensor([1.0, -2.0]),
        StepRule(lr=0.1, decay=0.2, momentum=0.9),
    )
    torch.testing.assert_close(factors, torch.tensor([[0.456, -0.58], [0.195, 1.76]]))
    torch.testing.assert_close(momenta, torch.tensor([[0.44, -4.2], [0.55, 2.4]]))
    torch.testing.assert_close(weight, torch.tensor([0.08892, -1.0208]))
