"""Lemmas 1 and 3–6 against simulation. The chance that a correct statement fails a test is computed
in place.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from secateurs.base.singular_values import spectral_norms
from secateurs.errors import ArgumentError, TheoryError
from secateurs.theory import (
    LATALA_MEASURED,
    NormConstants,
    fullest_bin,
    lemma_1,
    lemma_3,
    lemma_4,
    lemma_5,
    lemma_6,
    uniform_norm_bound,
)
from secateurs.theory.magnitude import order_moment, threshold_quantile
from secateurs.theory.random_matrices import UNIFORM_BY_NORMAL, latala_terms, measured_delta0
from theory.monte_carlo import TINY, assert_at_least, refuted


def hoeffding(sample: np.ndarray, expected: float, bound: float) -> None:
    """A mean of n values in [0, bound] is this close with probability at least 1 − TINY."""
    margin = bound * math.sqrt(math.log(2 / TINY) / (2 * len(sample)))
    assert abs(sample.mean() - expected) <= margin


@pytest.mark.parametrize(("rank", "count"), [(1, 1), (1, 10), (5, 10), (10, 10), (37, 50)])
def test_lemma_1_by_simulation(rank, count):
    rng = np.random.default_rng(0)
    squares = np.sort((rng.uniform(-2, 2, (40_000, count))) ** 2, axis=1)[:, rank - 1]
    found = lemma_1(rank, count, bound=2.0)
    hoeffding(squares, found.first, 4.0)
    hoeffding(squares**2, found.second, 16.0)


def test_lemma_1_is_the_beta_distribution():
    for power in range(5):
        assert order_moment(3, 9, power=power) == pytest.approx(
            stats.beta(3, 7).expect(lambda x, p=power: x**p)
        )
    assert stats.beta.sf(threshold_quantile(3, 9, failure=0.01), 3, 7) == pytest.approx(0.01)


def test_lemma_1_scales_with_the_bound():
    for bound in (1e-30, 1.0, 1e30):
        assert lemma_1(2, 5, bound=bound).first == pytest.approx(bound**2 * 6 / 42)


@pytest.mark.parametrize("shape", [(16, 16), (16, 64), (64, 16)])
def test_lemma_3_holds_and_is_not_far_off(shape):
    """400 matrices; with slack 1 the claimed failure is 2e^{−n/8}; a bound violated more often than
    claimed fails.
    """
    constants = lemma_3(1.0, slack=1.0)
    n = max(shape)
    norms = spectral_norms((torch.rand(400, *shape) * 2 - 1) / math.sqrt(n), tolerance=1e-4).values
    assert_at_least(int((norms <= constants.c0).sum()), 400, 1 - constants.failure(n))
    assert float(norms.mean()) > constants.c0 / 3


def test_the_explicit_norm_bound_holds():
    """At failure 0.05, 400 matrices: fewer than the claimed successes has chance below 1e-7."""
    norms = spectral_norms(torch.rand(400, 20, 30) * 2 - 1, tolerance=1e-4).values
    bound = uniform_norm_bound(20, 30, bound=1.0, failure=0.05)
    assert_at_least(int((norms <= bound).sum()), 400, 0.95)
    assert float(norms.max()) > bound / 2


def test_the_convex_order_constant_is_the_smallest():
    """E(U − t)₊ ≤ E(N − t)₊ for every t at σ = √(2π)/4, and not below it."""

    def gap(sigma, t):
        normal = sigma * stats.norm.pdf(t / sigma) - t * stats.norm.sf(t / sigma)
        return normal - np.clip(1 - t, 0, None) ** 2 / 4

    t = np.linspace(0, 3, 3001)
    assert gap(UNIFORM_BY_NORMAL, t).min() > -1e-12
    assert gap(0.99 * UNIFORM_BY_NORMAL, t).min() < -1e-4


def test_delta0_of_table_2_needs_no_matrix():
    printed = {
        (32, 0.95): 0.029,
        (64, 0.99): 0.021,
        (512, 0.999): 0.004,
        (256, 0.9999): 0.010,
    }
    for (n, level), value in printed.items():
        assert round(measured_delta0(n, level=level), 3) == value


@pytest.mark.parametrize("law", ["uniform", "normal", "sign"])
def test_lemma_4_with_the_measured_constant_on_square_matrices(law, generator):
    """The mean of 800 norms plus its margin stays below the bound.

    ‖·‖ is convex and 1-Lipschitz: P(Z ≤ E Z − t) ≤ exp(−t²/8) for independent entries in [−1, 1]
    (Samson 2000) and ≤ exp(−t²/2) for normal ones, so a mean of n is lower by √(8 log(1/TINY)/n),
    for normal ones half of it, with chance at most TINY. Half of C is refuted: the mean itself
    exceeds that bound by more than the (same) upper margin.
    """
    n, trials = 48, 800
    moments = {"uniform": (1 / 3, 1 / 5), "normal": (1.0, 3.0), "sign": (1.0, 1.0)}[law]
    draw = torch.rand(trials, n, n, generator=generator) * 2 - 1
    draw = {
        "uniform": draw,
        "normal": torch.randn(trials, n, n, generator=generator),
        "sign": draw.sign(),
    }[law]
    mean = float(spectral_norms(draw, tolerance=1e-4).values.mean())
    margin = (0.5 if law == "normal" else 1.0) * math.sqrt(8 * math.log(1 / TINY) / trials)
    second, fourth = (torch.full((n, n), m) for m in moments)
    assert mean + margin < lemma_4(second, fourth, constant=LATALA_MEASURED)
    assert mean - margin > lemma_4(second, fourth, constant=1 / 3)


def signs(shape, generator):
    return torch.randint(2, shape, generator=generator) * 2.0 - 1


LAWS = {
    "uniform": (
        lambda shape, g: torch.rand(shape, generator=g) * 2 - 1,
        1 / 3,
        1 / 5,
    ),
    "sign": (signs, 1.0, 1.0),
    "sparse": (
        lambda shape, g: signs(shape, g) * (torch.rand(shape, generator=g) < 0.01),
        0.01,
        0.01,
    ),
    "two values": (
        lambda shape, g: (torch.rand(shape, generator=g) < 0.1).float() - 0.1,
        0.09,
        0.1 * 0.9**4 + 0.9 * 0.1**4,
    ),
}
"""Laws on [−1, 1] of mean zero: how to draw them, E a², E a⁴."""


def mean_norm(law, shape, generator):
    """The mean of 400 norms, and how far above or below its expectation it lies with chance at most
    TINY.
    """
    matrices = LAWS[law][0]((400, *shape), generator)
    return float(spectral_norms(matrices, tolerance=1e-4).values.mean()), math.sqrt(
        8 * math.log(1 / TINY) / 400
    )


def moments(law, shape):
    return tuple(torch.full(shape, moment) for moment in LAWS[law][1:])


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("shape", [(1, 400), (4, 400), (64, 256), (256, 64), (50, 2), (16, 16)])
def test_lemma_4_by_default_holds_for_every_shape(law, shape, generator):
    mean, margin = mean_norm(law, shape, generator)
    assert mean + margin < lemma_4(*moments(law, shape))


def test_the_constant_of_squares_is_refuted_by_rectangles(generator):
    mean, margin = mean_norm("sign", (4, 400), generator)
    assert mean - margin > lemma_4(*moments("sign", (4, 400)), constant=LATALA_MEASURED)


@pytest.mark.parametrize("constant", [-1.0, 0.0, math.nan, math.inf])
def test_lemma_4_refuses_a_constant_that_bounds_nothing(constant):
    with pytest.raises(ArgumentError, match=r"constant = .* is not positive and finite"):
        lemma_4(torch.ones(2, 2), torch.ones(2, 2), constant=constant)


def test_no_constant_below_one_is_universal():
    """A row of n signs has norm √n exactly; the terms add up to √n + 1 + n^¼. Errata: Table 3's
    0.63 is for squares.
    """
    n = 10**8
    terms = math.sqrt(n) + 1 + n**0.25
    assert math.sqrt(n) / terms > 0.98
    rows, columns, fourth = latala_terms(torch.ones(1, 10_000), torch.ones(1, 10_000))
    assert (rows, columns, fourth) == (100.0, 1.0, 10.0)


@pytest.mark.parametrize(
    ("excess", "mean"),
    [(0.1, 1000.0), (0.5, 50.0), (2.0, 5.0), (2.0, 100.0), (9.0, 1.0)],
)
def test_lemma_5_bounds_exact_binomials(excess, mean):
    for trials in (1_000, 100_000):
        least = math.ceil((1 + excess) * mean - 1e-9)
        assert stats.binom.sf(least - 1, trials, mean / trials) <= lemma_5(excess, mean)


@pytest.mark.parametrize(("excess", "mean"), [(0.5, 10.0), (2.0, 1.0), (1.0, 4.0)])
def test_lemma_5_by_simulation(excess, mean):
    """100,000 sums of 40 independent variables, no two of one chance: as seldom as said; not 30
    times more so.
    """
    chances = np.linspace(0.2, 1.8, 40) * mean / 40
    sums = (np.random.default_rng(0).random((100_000, 40)) < chances).sum(1)
    below = int((sums < (1 + excess) * mean).sum())
    assert_at_least(below, 100_000, 1 - lemma_5(excess, mean))
    assert refuted(below, 100_000, 1 - lemma_5(excess, mean) / 30)


def test_lemma_5_as_printed_is_false():
    """Exact tails beat the printed bound: at t = 0.1 by a factor of 8, and at t = 2 for μ = 120."""
    assert stats.binom.sf(1099, 100_000, 0.01) > 7 * lemma_5(0.1, 1000, as_printed=True)
    assert stats.binom.sf(359, 10**7, 120 / 10**7) > lemma_5(2.0, 120, as_printed=True)


@pytest.mark.parametrize("bins", [2, 10, 100])
def test_lemma_6_by_simulation(bins):
    """2,000 throws; the exact union bound is at least the lemma, and the simulation at least
    both.
    """
    balls = math.ceil(bins * math.log(bins))
    loads = np.random.default_rng(0).multinomial(balls, np.full(bins, 1 / bins), size=2_000).max(1)
    successes = int((loads <= 3 * balls / bins).sum())
    assert_at_least(successes, 2_000, lemma_6(bins, balls))
    assert_at_least(successes, 2_000, fullest_bin(bins, balls))
    assert fullest_bin(bins, balls) >= lemma_6(bins, balls)


def test_astronomical_numbers_of_bins():
    assert fullest_bin(2**90, 2**150) == 1.0 and fullest_bin(10**60, 10**72) == 1.0


def test_bad_input_is_named():
    with pytest.raises(ArgumentError, match=r"rank = 5 is not between 1 and 4"):
        lemma_1(5, 4)
    with pytest.raises(ArgumentError, match=r"rank = 1\.5 is not a whole number"):
        lemma_1(1.5, 5)
    with pytest.raises(
        TheoryError, match="needs N >= n log n: N = 10, n log n = 460.517 for n = 100"
    ):
        lemma_6(100, 10)
    with pytest.raises(ArgumentError, match="scale = -1 is not positive"):
        lemma_3(-1.0)
    with pytest.raises(TheoryError, match="no such random variable"):
        lemma_4(torch.ones(2, 2), torch.zeros(2, 2))


@pytest.mark.parametrize(("width", "want"), [(1, 0.2706705664732254), (2, 0.036631277777468357)])
def test_the_failure_of_constants_by_hand(width, want):
    """2 e^{−4 · ½ · n}."""
    constants = NormConstants(c0=1.0, delta0=0.5)
    assert constants.failure(width) == pytest.approx(want, rel=1e-12)
