"""Lemma 2, Theorem 4, appendices C.1, C.2, E.2 and E.3: proofs against exact laws and
simulation."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from secateurs.errors import ArgumentError
from secateurs.theory import (
    ConvSetting,
    theorem_1_explicit,
    theorem_2_explicit,
    theorem_3_explicit,
)
from secateurs.theory.pruning.laws import (
    MAGNITUDE_LAWS,
    half_normal_quantile,
    subgaussian_quantile,
)
from secateurs.theory.pruning.lemma_2 import lemma_2, subgaussian_norm_bound
from secateurs.theory.pruning.masked_norms import masked_norm_bound
from secateurs.theory.pruning.tails.counts import hit_share
from secateurs.theory.pruning.tails.layer import RandomLayer
from secateurs.theory.pruning.theorem_1_global import theorem_1_global
from secateurs.theory.pruning.theorem_3_magnitude import (
    filter_quantile,
    theorem_3_magnitude,
)
from secateurs.theory.pruning.theorem_4 import (
    exact_order_statistic,
    theorem_4,
    theorem_4_gap,
)
from secateurs.theory.pruning.thresholds.across_layers import global_threshold

MANY = 300


def refuses(failures, runs, chance, alarm=1e-7):
    """Whether so many failures among the runs are what a chance of at most `chance` can give."""
    return stats.binom.sf(failures - 1, runs, chance) > alarm


def draws(law, shape, rng):
    """Entries of unit 1 of each law; symmetric ones within ±1 have proxy 1, few near zero."""
    return {
        "uniform": lambda: rng.uniform(-1, 1, shape),
        "normal": lambda: rng.normal(size=shape),
        "subgaussian": lambda: (
            rng.choice([-1.0, 1.0], shape) * rng.uniform(0.8, 1, shape)
        ),
        "bounded": lambda: rng.choice([-1.0, 1.0], shape),
    }[law]()


@pytest.mark.parametrize("law", ["normal", "subgaussian"])
@pytest.mark.parametrize("shape", [(1, 1), (30, 30), (5, 200)])
def test_lemma_2_and_the_norm_bounds_hold(law, shape):
    rng, failure = np.random.default_rng(0), 0.2
    norms = np.array([np.linalg.norm(draws(law, shape, rng), 2) for _ in range(MANY)])
    for bound in (
        subgaussian_norm_bound(*shape, failure=failure),
        masked_norm_bound(
            RandomLayer(rows=shape[0], columns=shape[1], bound=1.0),
            failure=failure,
            law=law,
        ),
    ):
        assert refuses(int((norms > bound).sum()), MANY, failure)
    constants = lemma_2()
    excess = 2.0
    level = constants.constant * (math.sqrt(shape[0]) + math.sqrt(shape[1])) + excess
    assert refuses(
        int((norms > level).sum()), MANY, min(1.0, constants.failure(excess))
    )
    assert subgaussian_norm_bound(*shape, failure=math.exp(-(excess**2) / 8)) <= level


def test_gaussian_norms_are_not_bounded_by_far():
    """The bound for normal entries is within a third of what is drawn."""
    rng = np.random.default_rng(1)
    largest = max(np.linalg.norm(rng.normal(size=(64, 64)), 2) for _ in range(100))
    bound = masked_norm_bound(
        RandomLayer(rows=64, columns=64, bound=1.0), failure=0.01, law="normal"
    )
    assert largest < bound < 1.4 * largest


@pytest.mark.parametrize("law", ["uniform", "normal", "subgaussian"])
def test_the_threshold_of_each_law_holds(law):
    """The quantile function bounds the r-th smallest magnitude at its Beta quantile."""
    rng, failure, size, rank = np.random.default_rng(2), 0.1, 400, 40
    level = stats.beta.isf(failure, rank, size - rank + 1)
    limit = MAGNITUDE_LAWS[law].quantile(level)
    found = [np.sort(np.abs(draws(law, size, rng)))[rank - 1] for _ in range(MANY)]
    assert refuses(int((np.array(found) > limit).sum()), MANY, failure)


def test_the_half_normal_quantile_inverts_its_law():
    for share in (1e-6, 0.3, 0.999):
        assert stats.norm.cdf(half_normal_quantile(share)) * 2 - 1 == pytest.approx(
            share, rel=1e-9
        )
    assert 2 * math.exp(-(subgaussian_quantile(0.3) ** 2) / 2) == pytest.approx(0.7)


@pytest.mark.parametrize("law", ["normal", "subgaussian"])
@pytest.mark.parametrize("form", [theorem_1_explicit, theorem_1_global])
def test_appendix_c1_and_e3_bound_pruned_networks(law, form):
    """Widths 16-48-48-40-5, K = 1: the error found by power iterations over inputs stays below."""
    widths, alpha, delta, runs = [16, 48, 48, 40, 5], 0.4, 0.2, 60
    found = form(widths, alpha=alpha, delta=delta, law=law)
    rng, bad = np.random.default_rng(3), 0
    sizes = [a * b for a, b in itertools.pairwise(widths[1:-1])]
    counts = [math.floor(size**0.6 * (1 + 1e-12)) for size in sizes]
    for _ in range(runs):
        dense = [
            draws(law, s, rng) / math.sqrt(max(s))
            for s in zip(widths[1:], widths, strict=False)
        ]
        sparse = [
            dense[0],
            *cut(dense[1:-1], counts, form is theorem_1_global),
            dense[-1],
        ]
        for k, (w, v) in enumerate(zip(dense, sparse, strict=True)):
            bad += (
                np.linalg.norm(w - v, 2) > found.layers[k].change * (1 + 1e-9) + 1e-12
            )
        xs = rng.normal(size=(200, 16))
        xs /= np.linalg.norm(xs, axis=1, keepdims=True)
        gap = np.linalg.norm(forward(dense, xs) - forward(sparse, xs), axis=1).max()
        assert gap <= found.error
    assert refuses(bad, runs, delta)


def cut(layers, counts, whole):
    """The smallest magnitudes of each layer, or of all together."""
    if not whole:
        return [
            np.where(np.abs(w) > np.sort(np.abs(w), axis=None)[n - 1], w, 0.0)
            for w, n in zip(layers, counts, strict=True)
        ]
    level = np.sort(np.concatenate([np.abs(w).ravel() for w in layers]))[
        sum(counts) - 1
    ]
    return [np.where(np.abs(w) > level, w, 0.0) for w in layers]


def forward(layers, x):
    for w in layers[:-1]:
        x = np.maximum(x @ w.T, 0)
    return x @ layers[-1].T


def test_the_global_threshold_holds_for_layers_of_unlike_scale():
    shapes, units, total, failure = [(20, 20), (10, 30)], [1.0, 0.2], 150, 0.1
    law = MAGNITUDE_LAWS["uniform"]
    limit = global_threshold(shapes, units, total, failure=failure, law=law)
    rng = np.random.default_rng(4)
    found = []
    for _ in range(MANY):
        parts = [
            u * rng.uniform(0, 1, a * b)
            for (a, b), u in zip(shapes, units, strict=True)
        ]
        found.append(np.sort(np.concatenate(parts))[total - 1])
    assert refuses(int((np.array(found) > limit).sum()), MANY, failure)
    assert limit < 1.4 * np.mean(found)


def test_one_layer_makes_global_and_layerwise_the_same():
    one = theorem_1_explicit([8, 64, 64, 4], alpha=0.5, delta=0.01)
    whole = theorem_1_global([8, 64, 64, 4], alpha=0.5, delta=0.01)
    assert whole.error == pytest.approx(one.error, rel=1e-6)
    assert [layer.removed for layer in whole.layers] == [0, 64, 0]


@pytest.mark.parametrize("law", ["uniform", "normal", "bounded"])
def test_appendix_e2_without_replacement(law):
    rng, failure, shape, count = np.random.default_rng(5), 0.2, (24, 30), 120
    layer = RandomLayer(rows=24, columns=30, bound=1.0)
    bound = masked_norm_bound(
        layer, draws=count, failure=failure, law=law, replacement=False
    )
    norms = []
    for _ in range(MANY):
        mask = np.zeros(720)
        mask[rng.choice(720, count, replace=False)] = 1
        norms.append(np.linalg.norm(draws(law, shape, rng) * mask.reshape(shape), 2))
    assert refuses(int((np.array(norms) > bound).sum()), MANY, failure)


def test_without_replacement_hits_exactly_the_share():
    assert hit_share(3, 12, replacement=False) == Fraction(1, 4)
    # P(Bin(D, N/D) ≥ N) ≥ ½: the median of a binomial law of whole mean is its mean.
    for size, count in ((5, 2), (40, 1), (100, 99)):
        assert stats.binom.sf(count - 1, size, count / size) >= 0.5
    more = theorem_2_explicit(
        [8, 64, 64, 4], alpha=0.1, delta=0.1, replacement=False
    ).error
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


@pytest.mark.parametrize("law", ["uniform", "normal"])
def test_appendix_c2_the_filters_of_smallest_norm(law):
    """Circular 3×3 convolutions, 6 → 6 on 4×4 maps: norms by Lemma 7 for every frequency."""
    setting = ConvSetting(depth=3, channels=6, kernel=3, map_size=4)
    delta, runs = 0.2, 100
    found = theorem_3_magnitude(setting, alpha=0.8, delta=delta, law=law)
    count, unit = found.layers[1].removed, 1 / (4 * math.sqrt(6))
    rng, bad = np.random.default_rng(6), 0
    for _ in range(runs):
        kernel = unit * draws(law, (6, 6, 3, 3), rng)
        sizes = np.abs(kernel).sum((2, 3))
        gone = (
            kernel * (sizes <= np.sort(sizes, axis=None)[count - 1])[..., None, None]
        )
        spectrum = np.fft.fft2(gone, s=(4, 4)).transpose(2, 3, 0, 1)
        bad += np.linalg.norm(spectrum, 2, axis=(2, 3)).max() > found.layers[1].change
    assert count == math.floor(6**1.2)
    assert refuses(bad, runs, delta)


def test_filter_quantiles_against_exact_sums():
    """Two uniform entries: P(U + V ≤ t) = t²/2; three: t³/6 up to 1; normal ones lie below."""
    assert filter_quantile(2, 0.125) == pytest.approx(0.5, abs=1e-8)
    assert filter_quantile(3, 1 / 6) == pytest.approx(1.0, abs=1e-8)
    assert filter_quantile(25, 0.5) == pytest.approx(12.5, abs=1e-8)
    sums = np.abs(np.random.default_rng(7).normal(size=(20_000, 9))).sum(1)
    assert (sums <= filter_quantile(9, 0.3, law="normal")).mean() >= 0.3


def test_theorem_4_as_printed_counts_from_the_wrong_end():
    """m/n = F(x): the m-th smallest lies below x half of the time; print says always."""
    exact = exact_order_statistic(1000, 10**6, below=1e-3)
    assert exact == pytest.approx(0.504, abs=5e-4)
    assert theorem_4(1000, 10**6, below=1e-3) == 0.5
    assert theorem_4(1000, 10**6, below=1e-3, as_printed=True) == 1.0
    # The m-th largest lies near 1, far above x.
    assert stats.beta.cdf(1e-3, 10**6 - 999, 1000) == 0.0


def test_theorem_4_is_a_limit():
    gaps = [theorem_4_gap(rank, rank * rank) for rank in (10, 100, 1000)]
    assert gaps[0] > gaps[1] > gaps[2] and gaps[2] < 0.01
    assert theorem_4_gap(900, 1000) > 0.1  # m/n must tend to zero


def test_a_smaller_law_never_costs_more():
    """Uniform entries on ±1 are bounded ones; with less assumed the error is larger."""
    errors = [
        theorem_2_explicit([8, 64, 64, 4], alpha=0.5, delta=0.1, law=law).error
        for law in ("uniform", "bounded")
    ]
    assert errors[0] < errors[1]
    setting = ConvSetting(depth=3, channels=16, kernel=3, map_size=8)
    for law in ("uniform", "bounded", "normal", "subgaussian"):
        assert theorem_3_explicit(setting, alpha=0.5, delta=0.1, law=law).error > 0


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (
            lambda: theorem_1_explicit(
                [4, 8, 8, 2], alpha=0.5, delta=0.1, law="cauchy"
            ),
            "'normal'",
        ),
        (
            lambda: theorem_1_explicit(
                [4, 8, 8, 2], alpha=0.5, delta=0.1, law="bounded"
            ),
            "thresholds",
        ),
        (
            lambda: theorem_1_global(
                [4, 8, 8, 2], alpha=0.5, delta=0.1, law="bounded"
            ),
            "look it up",
        ),
        (
            lambda: theorem_1_global([4, 8, 8, 2], counts=[65], delta=0.1),
            "65 entries cannot",
        ),
        (
            lambda: theorem_3_magnitude(
                ConvSetting(depth=3, channels=4, kernel=3, map_size=4),
                alpha=0.5,
                delta=0.1,
                law="bounded",
            ),
            "give a model",
        ),
        (
            lambda: masked_norm_bound(
                RandomLayer(rows=2, columns=2, bound=1.0),
                draws=5,
                failure=0.1,
                replacement=False,
            ),
            "without replacement",
        ),
    ],
)
def test_errors(ask, text):
    with pytest.raises(ArgumentError, match=text):
        ask()


@pytest.mark.parametrize("share", [0.1, 0.3, 0.9])
def test_a_normal_filter_of_one_tap_is_a_half_normal_weight(share):
    """With one tap the bound on the ℓ1 norm is exact, so nothing loose can hide a slip."""
    found = filter_quantile(1, share, law="normal")
    assert found == pytest.approx(half_normal_quantile(share), rel=1e-12)
