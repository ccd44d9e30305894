"""The tails behind the explicit Theorems 2 and 3: every step of the derivation, and the bound
itself by simulation.
"""

import itertools
import math
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from secateurs.errors import ArgumentError
from secateurs.theory import (
    RandomLayer,
    conv_operator_norm,
    masked_norm_bound,
    theorem_2_explicit,
    uniform_norm_bound,
)
from secateurs.theory.random_matrices import (
    LOG_MOMENT,
    half_spectrum,
    hit_share,
    log_mixture,
    normal_scale,
)
from theory.monte_carlo import assert_at_least, refuted
from theory.random_networks import filters, norms, prune_drawn, uniform_layer

SHARES = (1.0, 0.7, 0.3, 0.1, 0.01, 1e-4, 1e-9)


def test_step_1_the_median_of_a_poisson_law():
    """P(Poisson(N) ≥ N) ≥ ½: the factor 2 of filling in."""
    draws = np.unique(np.geomspace(1, 1e9, 4_000).astype(np.int64))
    assert stats.poisson.sf(draws - 1, draws).min() >= 0.5


def test_step_3_a_sign_times_a_vector():
    """E cosh|x + εv| ≤ cosh|x| cosh|v| for complex x, v, with equality when they are parallel."""
    rng = np.random.default_rng(0)
    x, v = (3 * (rng.normal(size=10_000) + 1j * rng.normal(size=10_000)) for _ in range(2))
    product_ = np.cosh(abs(x)) * np.cosh(abs(v))
    assert np.all((np.cosh(abs(x + v)) + np.cosh(abs(x - v))) / 2 <= product_ * (1 + 1e-12))
    parallel = (np.cosh(abs(x + 2 * x)) + np.cosh(abs(x - 2 * x))) / 2
    np.testing.assert_allclose(parallel, np.cosh(abs(x)) * np.cosh(2 * abs(x)))


@pytest.mark.parametrize("x", [1e-4, 0.009, 0.011, 1.0, 5.0])
def test_step_3_the_moments(x):
    """m(x) = E cosh(xU), by integration; signs: cosh(x). Large arguments do not overflow."""
    assert LOG_MOMENT["uniform"](x) == pytest.approx(
        math.log(integrate.quad(lambda u: math.cosh(x * u), 0, 1)[0])
    )
    assert LOG_MOMENT["bounded"](x) == pytest.approx(math.log(math.cosh(x)))
    assert log_mixture(x, 0.3) == pytest.approx(math.log(1 + 0.3 * (math.exp(x) - 1)))
    assert log_mixture(1e4, 0.3) == pytest.approx(1e4 + math.log(0.3))


@pytest.mark.parametrize(("law", "share"), list(product(("uniform", "bounded"), SHARES)))
def test_step_4_the_convex_order(law, share):
    """E(X − t)₊ ≤ E(sN − t)₊ for every t at s = s(p), and not 1 % below it."""

    def gap(s, t):
        masked = (
            np.clip(1 - t, 0, None) ** 2 / 4 if law == "uniform" else np.clip(1 - t, 0, None) / 2
        )
        return s * stats.norm.pdf(t / s) - t * stats.norm.sf(t / s) - share * masked

    t, s = np.linspace(0, 2, 20_001), normal_scale(share, law)
    assert gap(s, t).min() > -1e-9 * share
    assert gap(0.99 * s, t).min() < 0


def test_the_scale_grows_with_the_share():
    for law in ("uniform", "bounded"):
        scales = [normal_scale(p, law) for p in np.geomspace(1e-20, 1, 300)]
        assert all(a <= b * (1 + 1e-12) for a, b in pairwise(scales))


@pytest.mark.parametrize(
    ("rows", "columns", "draws"),
    [(16, 16, 20), (64, 96, 500), (96, 64, 6_000), (48, 48, None)],
)
def test_the_bound_holds_and_a_third_of_it_does_not(rows, columns, draws, generator):
    """400 matrices at failure 0.05: red with chance below 1e-7 if true; a bound three times smaller
    is red.
    """
    w = uniform_layer(rows, columns, 400, generator)
    found = norms(w if draws is None else w - prune_drawn(w, draws, generator))
    layer = RandomLayer(rows=rows, columns=columns, bound=1 / math.sqrt(max(rows, columns)))
    bound = masked_norm_bound(layer, draws=draws, failure=0.05)
    assert_at_least(int((found <= bound).sum()), 400, 0.95)
    assert refuted(int((found <= bound / 3).sum()), 400, 0.95)


def test_what_is_kept_obeys_the_bound_of_the_whole(generator):
    w = uniform_layer(64, 64, 400, generator)
    bound = masked_norm_bound(RandomLayer(rows=64, columns=64, bound=1 / 8), failure=0.05)
    assert_at_least(int((norms(prune_drawn(w, 1_000, generator)) <= bound).sum()), 400, 0.95)


@pytest.mark.parametrize("draws", [None, 200])
def test_bounded_entries_of_any_law(draws, generator):
    """Entries of mean zero within ±1, no two columns alike: skew two-point laws from (−1, 1) to
    (−0.05, 1).
    """
    low = torch.linspace(0.05, 1.0, 48)
    up = torch.rand(400, 48, 48, generator=generator) < low / (1 + low)
    w = torch.where(up, torch.ones(()), -low)
    found = norms(w if draws is None else w - prune_drawn(w, draws, generator))
    bound = masked_norm_bound(
        RandomLayer(rows=48, columns=48, bound=1.0),
        draws=draws,
        failure=0.05,
        law="bounded",
    )
    assert_at_least(int((found <= bound).sum()), 400, 0.95)
    assert refuted(int((found <= bound / 4).sum()), 400, 0.95)


@pytest.mark.parametrize(
    ("kernel", "map_size", "draws"),
    [(3, 8, 40), (3, 7, None), (1, 8, 40), (5, 8, 100)],
)
def test_convolutions(kernel, map_size, draws, generator):
    """‖·‖ over all frequencies (Lemma 7) of 100 convolutions at failure 0.2; a bound four times
    smaller is red.
    """
    w = filters(100, 16, 12, kernel, generator)
    part = w if draws is None else w - prune_drawn(w, draws, generator)
    found = torch.tensor([conv_operator_norm(k, map_size).value for k in part])
    layer = RandomLayer(
        rows=16,
        columns=12,
        bound=1.0,
        taps=kernel**2,
        frequencies=half_spectrum(map_size, kernel**2),
    )
    bound = masked_norm_bound(layer, draws=draws, failure=0.2)
    assert_at_least(int((found <= bound).sum()), 100, 0.8)
    assert refuted(int((found <= bound / 4).sum()), 100, 0.8)


@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (7, 7), (4, 7), (8, 6), (1, 1)])
def test_half_of_the_spectrum(rows, columns):
    """Frequencies up to conjugation, counted one by one."""
    classes = {
        min((u, v), (-u % rows, -v % columns)) for u, v in product(range(rows), range(columns))
    }
    assert (
        half_spectrum((rows, columns), 9) == len(classes) and half_spectrum((rows, columns), 1) == 1
    )
    assert half_spectrum(rows, 9) == half_spectrum((rows, rows), 9)


def test_laws_of_the_bound():
    """No draws: nothing. More draws: more, up to the whole. Homogeneous in the entries; symmetric
    in the shape.
    """
    layer = RandomLayer(rows=64, columns=32, bound=1.0)
    found = [
        masked_norm_bound(layer, draws=n, failure=0.01)
        for n in (0, 1, 10, 100, 1_000, 10_000, 10**8)
    ]
    assert found[0] == 0 and all(a <= b * (1 + 1e-9) for a, b in pairwise(found))
    assert (
        found[-1]
        == masked_norm_bound(layer, failure=0.01)
        <= uniform_norm_bound(64, 32, bound=1.0, failure=0.01)
    )
    for scale in (1e-30, 1e30):
        scaled = masked_norm_bound(
            RandomLayer(rows=32, columns=64, bound=scale), draws=100, failure=0.01
        )
        assert scaled == pytest.approx(scale * found[3], rel=1e-6)
    assert masked_norm_bound(layer, draws=100, failure=0.01) < masked_norm_bound(
        layer, draws=100, failure=0.001
    )
    assert masked_norm_bound(layer, draws=100, failure=0.01, law="bounded") > found[3]
    assert hit_share(None, 10) == 1 and hit_share(10, 10) == pytest.approx(1 - math.exp(-1))


def test_frozen_value():
    """64×64, 1,024 draws: p = 1 − e^{−¼}; the Chernoff bound by a search over a grid, and the
    Gordon bound.
    """
    layer = RandomLayer(rows=64, columns=64, bound=1.0)
    level, share = math.log(2 * 128 / 0.01), 1 - math.exp(-0.25)
    grid = np.geomspace(0.01, 20, 40_000)
    by_grid = ((level + 64 * np.log1p(share * (np.sinh(grid) / grid - 1))) / grid).min()
    gordon = normal_scale(share) * 16 + math.sqrt(8 * math.log(200))
    assert masked_norm_bound(layer, draws=1024, failure=0.01) == pytest.approx(
        min(by_grid, gordon), rel=1e-6
    )


def test_frozen_value_of_a_convolution():
    """16×12 filters of 9 taps at 34 frequencies, 40 draws: log(2 · 34 · 28/0.2) and 16 log(1 +
    p((sinh(x)/x)⁹ − 1)).
    """
    layer = RandomLayer(rows=16, columns=12, bound=1.0, taps=9, frequencies=34)
    level, share = math.log(2 * 34 * 28 / 0.2), 1 - math.exp(-40 / 192)
    grid = np.geomspace(0.01, 20, 40_000)
    by_grid = ((level + 16 * np.log1p(share * ((np.sinh(grid) / grid) ** 9 - 1))) / grid).min()
    assert masked_norm_bound(layer, draws=40, failure=0.2) == pytest.approx(by_grid, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"failure": 0.0}, r"failure = 0 is not in \(0, 1\)"),
        (
            {"failure": 0.1, "law": "cauchy"},
            "law = 'cauchy': give one of 'uniform', 'bounded'",
        ),
        ({"failure": 0.1, "draws": -1}, "draws = -1"),
    ],
)
def test_bad_input_is_named(options, message):
    with pytest.raises(ArgumentError, match=message):
        masked_norm_bound(RandomLayer(rows=4, columns=4, bound=1.0), **options)
    with pytest.raises(ArgumentError, match="rows = 0"):
        masked_norm_bound(RandomLayer(rows=0, columns=4, bound=1.0), failure=0.1)


def test_without_replacement_hits_exactly_the_share():
    assert hit_share(3, 12, replacement=False) == Fraction(1, 4)
    # P(Bin(D, N/D) ≥ N) ≥ ½: the median of a binomial law of whole mean is its mean.
    for size, count in ((5, 2), (40, 1), (100, 99)):
        assert stats.binom.sf(count - 1, size, count / size) >= 0.5
    more = theorem_2_explicit([8, 64, 64, 4], alpha=0.1, delta=0.1, replacement=False).error
    assert more > theorem_2_explicit([8, 64, 64, 4], alpha=0.1, delta=0.1).error


def test_appendix_e2_as_printed_lacks_a_factorial():
    """Four positions, two draws: 12 of 16 sequences have no repeat; print says C(4, 2)/16."""
    sequences = list(itertools.product(range(4), repeat=2))
    true = Fraction(sum(len(set(s)) == 2 for s in sequences), len(sequences))
    assert true == Fraction(3, 4)
    assert Fraction(math.comb(4, 2), 4**2) == Fraction(3, 8)
    # And at d = 32, α = ½ it is 4·10⁻⁸: nothing can be multiplied by it.
    size, count = 32**2, 181
    log = sum(math.log1p(-k / size) for k in range(count))
    assert 4e-8 < math.exp(log) < 5e-8
