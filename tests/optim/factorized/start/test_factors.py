"""How factors start: supports, moments within computed Monte-Carlo errors, empty intervals,
zeros.
"""

import math

import pytest
import torch

from secateurs.errors import ArgumentError, ParameterError, UnknownNameError
from secateurs.optim.factorized.factors.maths import product
from secateurs.optim.factorized.factors.penalty import is_balanced
from secateurs.optim.factorized.start.init import INITS, Start, factorize
from secateurs.optim.factorized.start.spread import kurtosis, spreads
from secateurs.optim.factorized.start.truncated import (
    FLOOR,
    SIGMA_REFERENCE,
    widest_floor,
)
from secateurs.optim.factorized.start.truncated_normal import (
    truncated_normal,
    truncated_variance,
)

N = 100_000


def start(depth=3, sigma=0.1, shape=(N,), weight=None, **options):
    weight = (
        torch.randn(shape, generator=torch.Generator().manual_seed(1))
        if weight is None
        else weight
    )
    return Start(
        weight=weight,
        depth=depth,
        sigma=sigma,
        generator=torch.Generator().manual_seed(0),
        **options,
    )


@pytest.mark.parametrize("name", INITS.names())
@pytest.mark.parametrize("depth", [2, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_rule_gives_finite_factors_reproducibly(name, depth, dtype):
    weight = torch.randn(5, 6, generator=torch.Generator().manual_seed(2)).to(dtype)
    kept = weight.clone()
    first, second = (
        factorize(name, start(depth, shape=(5, 6), weight=weight)).factors
        for _ in range(2)
    )
    assert torch.equal(first, second)
    assert first.shape == (depth, 5, 6)
    assert first.isfinite().all()
    assert first.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(weight, kept)
    assert (first != 0).all()


@pytest.mark.parametrize("depth", [2, 3, 4, 8])
@pytest.mark.parametrize("sigma", [0.01, 1 / 28, 0.3, 2.0])
def test_dwf_stays_in_its_interval(depth, sigma):
    factors = factorize("dwf", start(depth, sigma)).factors.abs()
    assert float(factors.min()) >= FLOOR ** (1 / depth) * (1 - 1e-5)
    assert float(factors.max()) <= min(1.0, (2 * sigma) ** (1 / depth)) * (1 + 1e-5)


@pytest.mark.parametrize("sigma", [1.5e-3, 1e-4, 1e-9])
def test_dwf_with_an_empty_interval_lowers_epsilon_and_says_so(sigma):
    started = factorize("dwf", start(3, sigma, name="'conv.bias'"))
    assert "epsilon lowered" in started.note
    assert "conv.bias" in started.note
    assert (
        pytest.approx(1 / 28) == SIGMA_REFERENCE
    )  # a layer of 784 inputs, as on MNIST
    floor = sigma * FLOOR / SIGMA_REFERENCE
    assert float(started.factors.abs().min()) >= floor ** (1 / 3) * (1 - 1e-5)


def relative_deviation(sigma, depth, floor):
    """The product's standard deviation in units of σ_w, from the closed form of one factor."""
    scale = sigma ** (1 / depth)
    high = min(1.0, (2 * sigma) ** (1 / depth)) / scale
    return truncated_variance(floor ** (1 / depth) / scale, high) ** (depth / 2)


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_erratum_just_above_the_empty_interval_all_weights_are_of_one_size(depth):
    sigma = 1.6e-3
    weight = product(factorize("dwf", start(depth, sigma)).factors.double()).abs()
    assert float(weight.min()) > 2.99e-3
    assert float(weight.max()) < 3.21e-3
    # Bounded by 3.2e-3, so the mean of squares over N draws is known to 1e-4.
    assert float(weight.square().mean()) ** 0.5 / sigma == pytest.approx(
        1.94, abs=0.01
    )
    assert relative_deviation(sigma, depth, FLOOR) == pytest.approx(1.94, abs=0.01)


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_the_printed_rule_has_the_right_deviation_near_seven_thousandths(depth):
    assert relative_deviation(7e-3, depth, FLOOR) == pytest.approx(1, abs=0.06)


@pytest.mark.parametrize("depth", [2, 3, 4, 7])
@pytest.mark.parametrize("sigma", [1e-9, 1e-4, 1.5e-3, 1.6e-3, 5e-3, 0.03, 0.3, 2.0])
def test_the_rule_for_wide_layers_never_exceeds_the_deviation_it_is_to_match(
    depth, sigma
):
    floor = min(FLOOR, widest_floor(depth) * sigma)
    expected = relative_deviation(sigma, depth, floor)
    assert expected <= 1 + 1e-9
    if floor < FLOOR:  # where the rule differs from print's, the deviation is exact
        assert expected == pytest.approx(1)
    found = factorize("dwf-wide", start(depth, sigma))
    weight = product(found.factors.double()) / sigma
    # |w| ≤ 2σ_w: the mean of w²/σ_w² over N draws errs by at most 4/√N a deviation
    assert float(weight.square().mean()) == pytest.approx(
        expected**2, abs=5 * 4 / math.sqrt(N)
    )
    assert found.note == ""


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_the_rule_for_wide_layers_is_the_printed_one_for_all_others(depth):
    sigma = FLOOR / widest_floor(depth) * (1 + 1e-9)
    same = [
        factorize(name, start(depth, sigma)).factors for name in ("dwf", "dwf-wide")
    ]
    assert torch.equal(*same)
    # One step further the two rules part: there is no layer where neither applies.
    sigma *= 0.99
    less = [
        factorize(name, start(depth, sigma)).factors for name in ("dwf", "dwf-wide")
    ]
    assert not torch.equal(*less)


@pytest.mark.parametrize("depth", [2, 3, 5, 8])
def test_the_widest_floor_is_where_the_variance_passes_one(depth):
    """Against bisection of the variance itself, which knows nothing of Lambert's function."""
    high, low, above = 2 ** (1 / depth), 1e-6, 1.0
    for _ in range(200):
        middle = (low + above) / 2
        smaller = truncated_variance(middle, high) < 1
        low, above = (middle, above) if smaller else (low, middle)
    assert widest_floor(depth) == pytest.approx(low**depth, rel=1e-9)


def test_truncated_numbers_have_the_exact_variance_and_symmetric_signs():
    low, high = 0.3, 1.4
    draws = truncated_normal(
        torch.empty(N, dtype=torch.float64),
        4,
        low=low,
        high=high,
        generator=torch.Generator().manual_seed(0),
    )
    expected = truncated_variance(low, high)
    # a bounded variable: the error of the mean of z² is below high²/sqrt(n); five of them
    assert float(draws.square().mean()) == pytest.approx(
        expected, abs=5 * high**2 / math.sqrt(4 * N)
    )
    assert abs(float(draws.sign().mean())) < 5 / math.sqrt(4 * N)


@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("name", sorted(set(INITS.names()) - {"pretrained"}))
def test_matched_variance(name, depth):
    sigma = 1 / 28
    weight = product(
        factorize(name, start(depth, sigma, match_variance=True)).factors.double()
    )
    error = math.sqrt((kurtosis(weight[None]) - 1) / N)
    assert float(weight.square().mean()) == pytest.approx(sigma**2, rel=5 * error)


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_varmatch_matches_the_variance_and_explodes_the_kurtosis(depth):
    factors = factorize("varmatch", start(depth, 0.2)).factors.double()
    assert kurtosis(factors) > 3 ** (depth - 1)
    # log of the mean of squares: var(w²) = (3^D·... - 1) σ⁴
    assert float(product(factors).square().mean()) == pytest.approx(
        0.04, rel=6 * math.sqrt((3**depth - 1) / N)
    )


@pytest.mark.parametrize("name", ["root", "pretrained"])
def test_given_weights_are_kept_and_balanced(name):
    weight = torch.randn(30, 4, dtype=torch.float64)
    factors = factorize(name, start(4, weight=weight)).factors
    torch.testing.assert_close(product(factors), weight, rtol=1e-12, atol=0)
    assert is_balanced(factors, tolerance=1e-12)


def test_zeros_under_pretrained_need_a_decision():
    weight = torch.tensor([1.0, 0.0, -2.0, 0.0])
    with pytest.raises(
        ParameterError,
        match="has 2 zeros of 4 under init='pretrained'.*zeros='revive'",
    ):
        factorize("pretrained", start(weight=weight, name="'bias'"))
    frozen = factorize("pretrained", start(weight=weight, zeros="frozen")).factors
    assert not frozen[:, 1].any()
    revived = factorize("pretrained", start(weight=weight, zeros="revive")).factors
    assert (revived != 0).all()
    torch.testing.assert_close(product(revived), weight, atol=1.3e-7, rtol=1e-6)


def test_root_draws_a_vector_of_zeros_anew():
    started = factorize("root", start(weight=torch.zeros(1000), sigma=0.1))
    assert float(product(started.factors).std()) == pytest.approx(0.1, rel=0.2)
    assert "drawn anew" in started.note


def test_spread_of_a_bias_is_that_of_its_layer():
    shapes = [(300, 784), (300,), (16, 3, 5, 5), (16,), (7,)]
    found = spreads([torch.empty(shape) for shape in shapes])
    assert found == pytest.approx(
        [1 / 28, 1 / 28, 1 / math.sqrt(75), 1 / math.sqrt(75), 1 / math.sqrt(7)]
    )


def test_errors():
    with pytest.raises(
        UnknownNameError, match="no initialisation 'dfw'. Did you mean 'dwf'"
    ):
        factorize("dfw", start(shape=(2,)))
    with pytest.raises(ArgumentError, match="sigma=0"):
        factorize("dwf", start(sigma=0.0, shape=(2,)))
