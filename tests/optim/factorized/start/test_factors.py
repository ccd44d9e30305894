"""How factors start: supports, moments within computed Monte-Carlo errors, empty intervals,
zeros.
"""

import math

import pytest
import torch
from torch import nn

from secateurs.errors import ArgumentError, ParameterError, UnknownNameError
from secateurs.optim.factorized.maths import is_balanced, product
from secateurs.optim.factorized.start import (
    FLOOR,
    INITS,
    SIGMA_REFERENCE,
    Start,
    factorize,
    kurtosis,
    spreads,
    truncated_normal,
    truncated_variance,
)

N = 100_000


def start(depth=3, sigma=0.1, shape=(N,), weight=None, **options):
    weight = (
        torch.randn(shape, generator=torch.Generator().manual_seed(1)) if weight is None else weight
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
        factorize(name, start(depth, shape=(5, 6), weight=weight)).factors for _ in range(2)
    )
    assert torch.equal(first, second)
    assert first.shape == (depth, 5, 6)
    assert first.isfinite().all()
    assert first.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(weight, kept)
    assert (first != 0).all()


STANDARD = {
    "LeCun": (lambda w: w.normal_(std=w.shape[1] ** -0.5), lambda n_in, n_out: 1 / n_in),
    "Kaiming": (nn.init.kaiming_normal_, lambda n_in, n_out: 2 / n_in),
    "Glorot": (nn.init.xavier_normal_, lambda n_in, n_out: 2 / (n_in + n_out)),
    "Glorot, uniform": (nn.init.xavier_uniform_, lambda n_in, n_out: 2 / (n_in + n_out)),
}
"""Definition 3: initialisations and their variance c·g²/n_mode."""


@pytest.mark.parametrize("scheme", STANDARD)
@pytest.mark.parametrize("shape", [(100, 784), (600, 200)])
def test_definition_3_and_what_products_of_standard_factors_keep_of_it(scheme, shape):
    fill_, variance_of = STANDARD[scheme]
    variance = variance_of(shape[1], shape[0])
    torch.manual_seed(0)
    weight = fill_(torch.empty(*shape))
    # Relative errors of a variance over N entries of kurtosis k: √((k − 1)/N); six of them.
    size = math.prod(shape)
    assert float(weight.square().mean()) == pytest.approx(variance, rel=6 * math.sqrt(2 / size))
    sigma = math.sqrt(variance)
    for depth in (2, 3):
        spread = 6 * math.sqrt((3**depth - 1) / size)
        for name, expected in (("vanilla", variance**depth), ("varmatch", variance)):
            own = product(factorize(name, start(depth, sigma, shape=shape)).factors.double())
            assert float(own.square().mean()) == pytest.approx(expected, rel=spread)
        # The root of a standard start is that start.
        root = product(factorize("root", start(depth, sigma, weight=weight)).factors)
        torch.testing.assert_close(root, weight)


def test_the_spread_of_a_start_is_lecun_s_for_every_layer():
    shapes = {(100, 784): 1 / 784, (16, 6, 5, 5): 1 / 150, (7, 3, 3): 1 / 9}
    found = spreads([torch.empty(shape) for shape in shapes])
    assert [s**2 for s in found] == pytest.approx(list(shapes.values()))


UPPER = {
    "dwf": lambda depth, sigma: min(1.0, 2 * sigma ** (1 / depth)),
    "dwf-wide": lambda depth, sigma: min(1.0, 2 * sigma ** (1 / depth)),
    "dwf-as-printed": lambda depth, sigma: min(1.0, (2 * sigma) ** (1 / depth)),
}
"""The upper end of each truncated start, written down a second time."""


@pytest.mark.parametrize("name", UPPER)
@pytest.mark.parametrize("depth", [2, 3, 4, 8])
@pytest.mark.parametrize("sigma", [0.01, 1 / 28, 0.3, 2.0])
def test_truncated_starts_fill_their_interval_and_stay_in_it(name, depth, sigma):
    factors = factorize(name, start(depth, sigma)).factors.abs()
    low = FLOOR ** (1 / depth)
    if name == "dwf-wide":
        low *= min(1.0, sigma * 28) ** (1 / depth)
    high = UPPER[name](depth, sigma)
    assert float(factors.min()) >= low * (1 - 1e-5)
    assert float(factors.max()) <= high * (1 + 1e-5)
    # Of depth · N draws none in the last hundredth of the interval has a chance below e^-100.
    assert float(factors.max()) > high - (high - low) / 100


@pytest.mark.parametrize("name", ["dwf", "dwf-as-printed"])
@pytest.mark.parametrize("sigma", [3e-4, 1e-4, 1e-9])
def test_an_empty_interval_lowers_epsilon_and_says_so(name, sigma):
    started = factorize(name, start(3, sigma, name="'conv.bias'"))
    assert "epsilon lowered" in started.note
    assert "conv.bias" in started.note
    assert pytest.approx(1 / 28) == SIGMA_REFERENCE  # a layer of 784 inputs, as on MNIST
    floor = sigma * FLOOR / SIGMA_REFERENCE
    assert float(started.factors.abs().min()) >= floor ** (1 / 3) * (1 - 1e-5)


def relative_deviation(name, sigma, depth, floor=FLOOR):
    """The product's standard deviation in units of σ_w, from the closed form of one factor."""
    scale = sigma ** (1 / depth)
    high = UPPER[name](depth, sigma) / scale
    return truncated_variance(floor ** (1 / depth) / scale, high) ** (depth / 2)


@pytest.mark.parametrize(
    ("name", "layers"),
    [("dwf", (1.26, 1.14, 1.04)), ("dwf-as-printed", (0.58, 0.52, 0.47))],
)
def test_erratum_the_deviations_that_the_two_readings_leave(name, layers):
    """LeNet-300-100 at D = 3: one reading keeps about σ_w, the other half of it."""
    for inputs, expected in zip((784, 300, 100), layers, strict=True):
        sigma = inputs**-0.5
        assert relative_deviation(name, sigma, 3) == pytest.approx(expected, abs=0.006)
        weight = product(factorize(name, start(3, sigma)).factors.double()) / sigma
        # |w| ≤ 8σ_w: the mean of w²/σ_w² over N draws has a deviation below 8/√N times its root.
        assert float(weight.square().mean()) == pytest.approx(
            expected**2, rel=0.02, abs=5 * 8 / math.sqrt(N)
        )


def test_erratum_the_minimum_with_one_binds_for_two_deviations_only():
    """`min{1, ·}` is printed, and no layer of print would reach it in the other reading."""
    for depth, inputs in ((3, 25), (4, 100)):
        assert 2 * inputs ** (-0.5 / depth) > 1
        assert (2 * inputs**-0.5) ** (1 / depth) < 1


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_erratum_just_above_the_empty_interval_all_weights_are_of_one_size(depth):
    sigma = 1.6e-3
    found = factorize("dwf-as-printed", start(depth, sigma))
    weight = product(found.factors.double()).abs()
    assert float(weight.min()) > 2.99e-3
    assert float(weight.max()) < 3.21e-3
    # Bounded by 3.2e-3, so the mean of squares over N draws is known to 1e-4.
    assert float(weight.square().mean()) ** 0.5 / sigma == pytest.approx(1.94, abs=0.01)
    assert relative_deviation("dwf-as-printed", sigma, depth) == pytest.approx(1.94, abs=0.01)


@pytest.mark.parametrize("depth", [2, 3, 4, 7])
@pytest.mark.parametrize("sigma", [1e-9, 1e-4, 1.5e-3, 1.6e-3, 5e-3, 1 / 28])
def test_the_rule_for_wide_layers_keeps_the_deviation_of_784_inputs(depth, sigma):
    floor = FLOOR * min(1.0, sigma * 28)
    expected = relative_deviation("dwf-wide", sigma, depth, floor)
    binding = min(1.0, 2 * sigma ** (1 / depth)) == 1.0 or depth == 7
    if not binding:  # min(1, ·) cuts more of a layer that is not wide
        assert expected == pytest.approx(relative_deviation("dwf", 1 / 28, depth))
    found = factorize("dwf-wide", start(depth, sigma))
    assert found.note == ""
    weight = product(found.factors.double()) / sigma
    # Each factor lies below 2σ_w^{1/D}, so that w²/σ_w² is at most 4^D.
    assert float(weight.square().mean()) == pytest.approx(
        expected**2, abs=5 * 2**depth * expected / math.sqrt(N)
    )


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_the_rule_for_wide_layers_is_the_usual_one_up_to_784_inputs(depth):
    def both(sigma):
        return [factorize(name, start(depth, sigma)).factors for name in ("dwf", "dwf-wide")]

    assert torch.equal(*both(1 / 28))
    assert torch.equal(*both(0.1))
    # One step further the two rules part: there is no layer where neither applies.
    assert not torch.equal(*both(0.99 / 28))


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
    weight = product(factorize(name, start(depth, sigma, match_variance=True)).factors.double())
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
    with pytest.raises(UnknownNameError, match="no initialisation 'dfw'. Did you mean 'dwf'"):
        factorize("dfw", start(shape=(2,)))
    with pytest.raises(ArgumentError, match="sigma=0"):
        factorize("dwf", start(sigma=0.0, shape=(2,)))
