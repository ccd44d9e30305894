"""The sketching statements: exact expectations against enumeration and simulation, bounds against
counterexamples.
"""

import math
from itertools import product

import pytest
import torch

from secateurs.errors import ArgumentError, TheoryError, UnknownNameError
from secateurs.theory import (
    SKETCHES,
    lemma_41,
    lemma_42,
    lemma_43,
    lemma_45,
    lemma_b1,
    lemma_b2,
    leverage_scores,
    sketch_error,
    sketch_mask,
    sketch_probabilities,
    theorem_44,
)
from secateurs.theory.sketching.masks import inclusion
from theory.monte_carlo import (
    assert_counts,
    assert_mean,
    assert_mean_by_medians,
    mean_margin,
)


def every_mask(p, s):
    """All masks of Algorithm 1 with their probabilities: the exact oracle for tiny sizes."""
    for draws in product(range(len(p)), repeat=s):
        mask = torch.zeros(len(p), dtype=torch.float64)
        for i in draws:
            mask[i] += 1 / (s * p[i])
        yield float(torch.stack([p[i] for i in draws]).prod()), mask


@pytest.fixture
def case():
    g = torch.Generator().manual_seed(1)
    X, w0, w = (
        torch.randn(*shape, generator=g, dtype=torch.float64)
        for shape in ((4, 3), (4,), (4,))
    )
    return X, w0, w, sketch_probabilities(X, w0)


@pytest.mark.parametrize("s", [1, 2, 3])
def test_lemmas_b1_b2_41_43_by_enumeration(case, s):
    X, w0, w, p = case
    weights, masks = zip(*every_mask(p, s), strict=True)
    chance, features = (
        torch.tensor(weights, dtype=torch.float64),
        torch.stack([X.T @ (w * m) for m in masks]),
    )
    mean = (chance[:, None] * features).sum(0)
    torch.testing.assert_close(mean, lemma_b1(X, w, p))
    torch.testing.assert_close(
        (chance[:, None] * (features - mean).square()).sum(0), lemma_b2(X, w, p, s=s)
    )
    error = float((chance * (features - X.T @ w).square().sum(1)).sum())
    assert lemma_43(X, w, p, s=s) == pytest.approx(error)
    assert lemma_43(X, w, p, s=s, exact=False) >= error
    own = torch.stack([X.T @ (w0 * m) for m in masks]) - X.T @ w0
    assert lemma_41(X, w0, s=s) == pytest.approx(
        float((chance * own.square().sum(1)).sum())
    )


def test_lemma_b1_needs_every_coordinate_drawn(case):
    """Print says Xᵀw for any p; a coordinate that is never drawn is named, unless its feature is
    zero anyway.
    """
    X, _, w, _ = case
    p = torch.tensor([0.0, 0.5, 0.0, 0.5], dtype=torch.float64)
    with pytest.raises(
        TheoryError, match=r"2 coordinates .* have p_k = 0 \(first: k = 0, 2\)"
    ):
        lemma_b1(X, w, p)
    torch.testing.assert_close(lemma_b1(X, w, p, as_printed=True), X.T @ w)
    chance, masks = zip(*every_mask(p[1::2], 2), strict=True)
    mean = sum(
        c * (X[1::2].T @ (w[1::2] * m)) for c, m in zip(chance, masks, strict=True)
    )
    torch.testing.assert_close(lemma_b1(X, w * (p > 0), p), mean)


def test_equation_2_is_optimal(case):
    X, w0, _, p = case
    best = lemma_43(X, w0, p, s=5)
    for _ in range(50):
        other = torch.rand(4, dtype=torch.float64) + 0.01
        assert lemma_43(X, w0, other / other.sum(), s=5) >= best - 1e-12


def gaussian(d, n, times, generator):
    return torch.randn(
        times, d, n, generator=generator, dtype=torch.float64
    ) / math.sqrt(n)


def fourth(n):
    """E r⁴ = 1 + 2/n for a row norm r of Gaussian X. The errors are at most (Σ|w0_k|r_k)²/s (Lemma
    4.2), Σ|w0_k|r_k Σ(w_k²/|w0_k|)r_k/s (Theorem 4.4) and dΣw_k²r_k²/s (Lemma 4.5): by Minkowski
    and Cauchy–Schwarz their second moments are at most the squares at r = 1 times E r⁴.
    """
    return 1 + 2 / n


def test_lemmas_b1_b2_41_43_by_simulation(generator):
    """10,000 masks of Algorithm 1 at d = 12, s = 4, with margins proven for bounded values:
    features are means of s rows z_k = X_(k) w_k/p_k, so they and their errors lie within the
    extremes of those.
    """
    X, w0, w = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((12, 3), (12,), (12,))
    )
    w, p = w0 + 0.2 * w, sketch_probabilities(X, w0)
    masks = torch.stack([sketch_mask(p, 4, generator) for _ in range(10_000)])
    for v in (w, w0):
        features, mean, rows = (masks * v) @ X, X.T @ v, X * (v / p)[:, None]
        width = float((rows - mean).norm(dim=1).max()) ** 2
        for column in range(3):
            spread = float(rows[:, column].max() - rows[:, column].min())
            assert_mean(features[:, column], float(lemma_b1(X, v, p)[column]), spread)
        errors = (features - mean).square().sum(1)
        assert_mean(errors, lemma_43(X, v, p, s=4), width)
        assert_mean(errors, float(lemma_b2(X, v, p, s=4).sum()), width)
    assert_mean(errors, lemma_41(X, w0, s=4), width)
    assert abs(float(errors.mean()) - 2 * lemma_41(X, w0, s=4)) > mean_margin(
        errors.numpy(), width
    )


def test_lemma_42_the_specification_counterexample(generator):
    """d = 50, n = 40, s = 20: print says w²/s; the truth is ten times that, and the correction is
    exact.
    """
    w0 = torch.randn(50, generator=generator, dtype=torch.float64)
    values = [lemma_41(X, w0, s=20) for X in gaussian(50, 40, 4_000, generator)]
    assert_mean_by_medians(
        values,
        lemma_42(w0, s=20, examples=40),
        fourth(40) * float(w0.abs().sum()) ** 4 / 400,
    )
    assert (
        lemma_42(w0, s=20)
        > lemma_42(w0, s=20, examples=40)
        > 10 * lemma_42(w0, s=20, as_printed=True)
    )


def test_theorem_44_exact_bound_and_counterexample(generator):
    w0 = torch.randn(50, generator=generator, dtype=torch.float64)
    w = w0 + 0.3 * torch.randn(50, generator=generator, dtype=torch.float64)
    values = [
        sketch_error(X, w0, s=20, w=w).expected
        for X in gaussian(50, 40, 4_000, generator)
    ]
    second = (
        fourth(40) * float(w0.abs().sum() * (w.square() / w0.abs()).sum()) ** 2 / 400
    )
    assert_mean_by_medians(
        values, theorem_44(w0, w, s=20, examples=40, exact=True), second
    )
    assert theorem_44(w0, w, s=20) >= theorem_44(w0, w, s=20, exact=True)
    w0[0] = 1e-3
    exact = theorem_44(w0, w, s=20, examples=40, exact=True)
    assert theorem_44(w0, w, s=20) >= exact > theorem_44(w0, w, s=20, as_printed=True)


def test_uniform_mass_rescues_tiny_weights(generator):
    X, w0 = (
        gaussian(50, 40, 1, generator)[0],
        torch.randn(50, generator=generator, dtype=torch.float64),
    )
    w = w0.clone()
    w0[0] = 0.0
    with pytest.raises(TheoryError, match=r"p_k = 0 \(first: k = 0\)"):
        sketch_error(X, w0, s=20, w=w)
    assert (
        sketch_error(X, w0, s=20, w=w, uniform=0.1).expected
        < 10 * sketch_error(X, w, s=20).expected
    )


def test_lemma_45(generator):
    w = torch.randn(30, generator=generator, dtype=torch.float64)
    flat = torch.full((30,), 1 / 30, dtype=torch.float64)
    values = [lemma_43(X, w, flat, s=10) for X in gaussian(30, 20, 4_000, generator)]
    second = fourth(20) * (30 * float(w.square().sum())) ** 2 / 100
    assert_mean_by_medians(values, lemma_45(w, s=10, exact=True), second)
    assert lemma_45(w, s=10) > lemma_45(w, s=10, exact=True)


def test_the_factor_d_is_not_avoided(generator):
    """Section 4 says Theorem 4.4 avoids the d of Lemma 4.5; for Gaussian w0 = w it keeps 2/π of
    it.
    """
    w = torch.randn(100_000, generator=generator, dtype=torch.float64)
    assert theorem_44(w, w, s=10) / lemma_45(w, s=10) == pytest.approx(
        2 / math.pi, rel=0.01
    )


@pytest.mark.parametrize("method", list(SKETCHES))
@pytest.mark.parametrize("s", [1, 3, 6, 9])
def test_masks_are_unbiased_and_no_larger_than_s(method, s, generator):
    """Every coordinate's mean over 3,000 masks is 1 within 5.5 standard errors.

    By the central limit theorem red with chance below 5e-8 each; a proof needs bounded masks, which
    priority sampling has not. What the paper states is Algorithm 1: `test_algorithm_1_frequencies`
    is exact.
    """
    p = torch.tensor(
        [0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.06, 0.04, 0.0], dtype=torch.float64
    )
    masks = torch.stack(
        [sketch_mask(p, s, generator, method=method) for _ in range(3_000)]
    )
    assert int((masks != 0).sum(1).max()) <= s and bool((masks[:, 8] == 0).all())
    error = 5.5 * masks.std(0) / math.sqrt(len(masks)) + 1e-12
    assert bool(((masks.mean(0) - 1).abs() <= error)[:8].all())


@pytest.mark.parametrize("method", list(SKETCHES))
def test_masks_are_reproducible_and_keep_everything_when_they_may(method):
    p = torch.rand(1_000) + 0.1
    p = p / p.sum()
    first, second = (
        sketch_mask(p, 50, torch.Generator().manual_seed(3), method=method)
        for _ in range(2)
    )
    assert torch.equal(first, second) and first.dtype == p.dtype
    if method != "replacement":
        assert int((first != 0).sum()) == 50
        torch.testing.assert_close(
            sketch_mask(p, 1_000, method=method), torch.ones(1_000)
        )


def test_algorithm_1_frequencies(generator):
    """The counts of 20,000 draws are binomial with the chances p: exact two-sided tails, red with
    chance below 1e-7.
    """
    p = torch.tensor([0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.04, 0.01], dtype=torch.float64)
    counts = (sketch_mask(p, 20_000, generator) * 20_000 * p).round()
    assert_counts(counts.numpy(), 20_000, p.numpy())


def test_inclusion_probabilities():
    p = torch.tensor([0.7, 0.2, 0.1, 0.0])
    assert inclusion(p, 2).tolist() == pytest.approx([1.0, 2 / 3, 1 / 3, 0.0])
    assert float(inclusion(torch.rand(100), 30).sum()) == pytest.approx(30.0)


def test_leverage_scores():
    X = torch.randn(30, 5, dtype=torch.float64)
    hat = X @ torch.linalg.pinv(X)
    torch.testing.assert_close(leverage_scores(X), hat.diagonal() / 5)
    with pytest.raises(TheoryError, match="X is zero"):
        leverage_scores(torch.zeros(3, 2))


def test_a_mask_for_other_data(case):
    """Lemma 4.3 with X̃ ≠ X: the probabilities come from the one, the error from the other."""
    X, w0, w, _ = case
    other = torch.randn(4, 7, dtype=torch.float64)
    found = sketch_error(X, w0, s=3, w=w, X_mask=other)
    torch.testing.assert_close(found.probabilities, sketch_probabilities(other, w0))
    assert found.expected == pytest.approx(
        lemma_43(X, w, sketch_probabilities(other, w0), s=3)
    )
    assert found.bound >= found.expected and found.relative == pytest.approx(
        found.expected / found.energy
    )


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_probabilities_do_not_depend_on_scale(case, scale):
    X, w0, _, p = case
    torch.testing.assert_close(sketch_probabilities(X, w0 * scale), p)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda X, w: sketch_mask(torch.tensor([0.5, 0.4]), 2),
            "p sums to 0.90000001, not to 1",
        ),
        (lambda X, w: sketch_mask(torch.tensor([1.5, -0.5]), 2), "smallest is -0.5"),
        (lambda X, w: sketch_mask(torch.tensor([1.0]), 0), "s = 0"),
        (lambda X, w: sketch_error(X, w, s=0), "s = 0"),
        (lambda X, w: sketch_error(X, w[:2], s=1), "give a vector of 4 entries"),
        (lambda X, w: sketch_error(X[0], w, s=1), "give a matrix"),
        (lambda X, w: sketch_error(X, w, s=1, uniform=1.5), "uniform = 1.5"),
        (lambda X, w: sketch_error(X, w * 0, s=1), "sum to 0"),
        (
            lambda X, w: theorem_44(w * torch.tensor([0, 1, 1, 1]), w, s=1),
            "1 entries of w0 are zero",
        ),
        (lambda X, w: lemma_42(w, s=1, examples=0), "examples = 0"),
        (
            lambda X, w: lemma_43(X, w, torch.tensor([0.5, 0.5]), s=1),
            "p has 2 entries, X has 4 rows",
        ),
        (
            lambda X, w: lemma_b1(X, w, torch.tensor([0.5, 0.5])),
            "p has 2 entries, X has 4 rows",
        ),
        (lambda X, w: theorem_44(w, w[:1], s=1), "w has 1 entries, w0 has 4"),
        (lambda X, w: theorem_44(w, w[:3], s=1), "w has 3 entries, w0 has 4"),
        (
            lambda X, w: theorem_44(w[:0], w[:0], s=1),
            r"w0 has no entries \(shape \(0,\)\)",
        ),
        (lambda X, w: leverage_scores(w), r"X has shape \(4,\): give a matrix"),
        (lambda X, w: leverage_scores(X[:0]), r"X has no entries \(shape \(0, 3\)\)"),
        (lambda X, w: leverage_scores(X + 0j), "X has torch.complex128 values"),
        (lambda X, w: sketch_mask(torch.ones(0), 1), r"p has shape \(0,\)"),
    ],
)
def test_bad_input_is_named(case, call, message):
    with pytest.raises((ArgumentError, TheoryError), match=message):
        call(case[0], case[1])


@pytest.mark.parametrize("s", [2.5, math.nan, math.inf, 0, -3, True, "3"])
def test_draws_are_whole_numbers(case, s):
    X, w0, w, p = case
    calls = (
        lambda: sketch_mask(p, s),
        lambda: sketch_error(X, w0, s=s),
        lambda: theorem_44(w0, w, s=s),
        lambda: lemma_41(X, w0, s=s),
        lambda: lemma_42(w0, s=s),
        lambda: lemma_43(X, w, p, s=s),
        lambda: lemma_45(w, s=s),
        lambda: lemma_b2(X, w, p, s=s),
        lambda: lemma_42(w0, s=1, examples=s),
    )
    for call in calls:
        with pytest.raises(
            ArgumentError, match="is not a whole number of at least 1"
        ):
            call()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_no_numbers_are_named_with_their_place(case, value):
    X, w0, w, p = case
    bad, spoiled = torch.tensor([1.0, value, 1.0, 1.0]), X.clone()
    spoiled[2, 1] = value
    calls = {
        r"w0 has 1 NaN or infinite entries of 4 \(first: \[1\]\)": (
            lambda: sketch_error(X, bad, s=1),
            lambda: theorem_44(bad, w, s=1),
            lambda: lemma_41(X, bad, s=1),
            lambda: lemma_42(bad, s=1),
        ),
        r"w has 1 NaN or infinite entries of 4 \(first: \[1\]\)": (
            lambda: sketch_error(X, w0, s=1, w=bad),
            lambda: theorem_44(w0, bad, s=1),
            lambda: lemma_43(X, bad, p, s=1),
            lambda: lemma_45(bad, s=1),
            lambda: lemma_b1(X, bad, p),
        ),
        r"p has 1 NaN or infinite entries of 4 \(first: \[1\]\)": (
            lambda: sketch_mask(bad, 1),
            lambda: lemma_b1(X, w, bad),
        ),
        r"X has 1 NaN or infinite entries of 12 \(first: \[2, 1\]\)": (
            lambda: leverage_scores(spoiled),
            lambda: sketch_error(spoiled, w0, s=1),
            lambda: lemma_b2(spoiled, w, p, s=1),
        ),
    }
    for message, found in calls.items():
        for call in found:
            with pytest.raises(ArgumentError, match=message):
                call()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [3, 100, 10_000])
def test_probabilities_may_come_in_low_precision(dtype, size, generator):
    """Divided by their sum in their own precision they need not sum to 1 in ours; the weights are
    right even so.
    """
    weights = torch.rand(size, generator=generator).to(dtype) + 0.1
    p = weights / weights.sum()
    m = sketch_mask(p, size, generator)
    assert m.dtype == torch.float32 and bool(m.isfinite().all())
    q = p.double() / p.double().sum()
    counts = m * size * q
    torch.testing.assert_close(counts, counts.round(), rtol=1e-4, atol=1e-4)
    assert int(counts.round().sum()) == size
    with pytest.raises(ArgumentError, match="not to 1"):
        sketch_mask((p * 0.9).to(dtype), 1)


def test_whole_numbers_of_any_kind_pass(case):
    X, w0, _, _ = case
    assert sketch_error(X, w0, s=3.0).expected == sketch_error(X, w0, s=3).expected
    assert leverage_scores(torch.eye(2, dtype=torch.int64)).tolist() == [0.5, 0.5]


def test_unknown_sketch():
    with pytest.raises(UnknownNameError, match="Did you mean 'priority'"):
        sketch_mask(torch.ones(1), 1, method="prioritty")
