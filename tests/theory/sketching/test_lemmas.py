"""Lemmas B.1, B.2 and 4.1 to 4.5: by enumeration, by simulation, and where print is wrong."""

import math
from itertools import product

import pytest
import torch

from secateurs.errors import TheoryError
from secateurs.theory import (
    lemma_41,
    lemma_42,
    lemma_43,
    lemma_45,
    lemma_b1,
    lemma_b2,
    sketch_error,
    sketch_mask,
    sketch_probabilities,
    theorem_44,
)
from theory.monte_carlo import (
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
    assert lemma_41(X, w0, s=s) == pytest.approx(float((chance * own.square().sum(1)).sum()))


def test_lemma_b1_needs_every_coordinate_drawn(case):
    """The paper says Xᵀw for any p; a coordinate that is never drawn is named, unless its feature
    is zero anyway.
    """
    X, _, w, _ = case
    p = torch.tensor([0.0, 0.5, 0.0, 0.5], dtype=torch.float64)
    with pytest.raises(TheoryError, match=r"2 coordinates .* have p_k = 0 \(first: k = 0, 2\)"):
        lemma_b1(X, w, p)
    torch.testing.assert_close(lemma_b1(X, w, p, as_printed=True), X.T @ w)
    chance, masks = zip(*every_mask(p[1::2], 2), strict=True)
    mean = sum(c * (X[1::2].T @ (w[1::2] * m)) for c, m in zip(chance, masks, strict=True))
    torch.testing.assert_close(lemma_b1(X, w * (p > 0), p), mean)


def test_equation_2_is_optimal(case):
    X, w0, _, p = case
    best = lemma_43(X, w0, p, s=5)
    for _ in range(50):
        other = torch.rand(4, dtype=torch.float64) + 0.01
        assert lemma_43(X, w0, other / other.sum(), s=5) >= best - 1e-12


def gaussian(d, n, times, generator):
    return torch.randn(times, d, n, generator=generator, dtype=torch.float64) / math.sqrt(n)


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
    assert abs(float(errors.mean()) - 2 * lemma_41(X, w0, s=4)) > mean_margin(errors.numpy(), width)


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
    values = [sketch_error(X, w0, s=20, w=w).expected for X in gaussian(50, 40, 4_000, generator)]
    second = fourth(40) * float(w0.abs().sum() * (w.square() / w0.abs()).sum()) ** 2 / 400
    assert_mean_by_medians(values, theorem_44(w0, w, s=20, examples=40, exact=True), second)
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
    assert theorem_44(w, w, s=10) / lemma_45(w, s=10) == pytest.approx(2 / math.pi, rel=0.01)


def test_theorem_44_term_by_term():
    """w0 = (1, −2), w = (1.5, −1): ‖w0‖₁ = 3, gaps ½ and 1, least |w0| 1, s = 6."""
    w0, w = torch.tensor([1.0, -2.0]), torch.tensor([1.5, -1.0])
    assert theorem_44(w0, w, s=6) == pytest.approx(3 / 6 * (1.25 * 1 + 2 * 1.5 + 3))
    # As printed ‖w0‖_∞ = 2 takes the place of 1/min|w0|; halved it would be smaller.
    printed = theorem_44(w0, w, s=6, as_printed=True)
    assert printed == pytest.approx(3 / 6 * (1.25 * 2 + 2 * 1.5 + 3))
    exact = theorem_44(w0, w, s=6, exact=True)
    assert exact == pytest.approx((3 * (2.25 / 1 + 1 / 2) - (2.25 + 1)) / 6)


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_theorem_44_as_printed_takes_the_larger_of_both_readings(scale):
    """‖w0‖_∞ or 1/‖w0‖_∞: twice as large either way, for w0 = ±1/2 and ±2."""
    w0 = scale * torch.tensor([1.0, -1.0])
    w = w0 + torch.tensor([1.0, 0.0])
    wanted = 2 * scale * (1.0 * 2.0 + 2 * 1.0 + 2 * scale) / 4
    assert theorem_44(w0, w, s=4, as_printed=True) == pytest.approx(wanted)
