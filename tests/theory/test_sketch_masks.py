"""Masks by sketching: unbiased, of the size asked for, reproducible."""

import math

import pytest
import torch

from secateurs.errors import TheoryError, UnknownNameError
from secateurs.theory import (
    SKETCHES,
    lemma_43,
    leverage_scores,
    sketch_error,
    sketch_mask,
    sketch_probabilities,
)
from secateurs.theory.sketch_masks import inclusion
from theory.monte_carlo import (
    assert_counts,
)


@pytest.mark.parametrize("method", list(SKETCHES))
@pytest.mark.parametrize("s", [1, 3, 6, 9])
def test_masks_are_unbiased_and_no_larger_than_s(method, s, generator):
    """Every coordinate's mean over 1,000 masks is 1 within 5.5 standard errors.

    By the central limit theorem red with chance below 5e-8 each; a proof needs bounded masks, which
    priority sampling has not. What the paper states is Algorithm 1: `test_algorithm_1_frequencies`
    is exact.
    """
    p = torch.tensor([0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.06, 0.04, 0.0], dtype=torch.float64)
    masks = torch.stack([sketch_mask(p, s, generator, method=method) for _ in range(1_000)])
    assert int((masks != 0).sum(1).max()) <= s and bool((masks[:, 8] == 0).all())
    error = 5.5 * masks.std(0) / math.sqrt(len(masks)) + 1e-12
    assert bool(((masks.mean(0) - 1).abs() <= error)[:8].all())


@pytest.mark.parametrize("method", list(SKETCHES))
def test_masks_are_reproducible_and_keep_everything_when_they_may(method):
    p = torch.rand(1_000) + 0.1
    p = p / p.sum()
    first, second = (
        sketch_mask(p, 50, torch.Generator().manual_seed(3), method=method) for _ in range(2)
    )
    assert torch.equal(first, second) and first.dtype == p.dtype
    if method != "replacement":
        assert int((first != 0).sum()) == 50
        torch.testing.assert_close(sketch_mask(p, 1_000, method=method), torch.ones(1_000))


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
    assert found.expected == pytest.approx(lemma_43(X, w, sketch_probabilities(other, w0), s=3))
    assert found.bound >= found.expected and found.relative == pytest.approx(
        found.expected / found.energy
    )


def test_unknown_sketch():
    with pytest.raises(UnknownNameError, match="Did you mean 'priority'"):
        sketch_mask(torch.ones(1), 1, method="prioritty")
