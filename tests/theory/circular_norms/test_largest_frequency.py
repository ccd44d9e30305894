"""The search leaves the loudest frequency with the stated probability, and no more often."""

import pytest
import torch
from scipy import stats

from secateurs.theory import circular_norms as loudest
from secateurs.theory.circular_norms import Grams, symbol


def packed_gram(values):
    """One Hermitian matrix with these eigenvalues, as (R + J)/2."""
    g = torch.Generator().manual_seed(0)
    basis, _ = torch.linalg.qr(
        torch.randn(len(values), len(values), generator=g, dtype=torch.complex128)
    )
    matrix = (basis * values.to(basis.dtype)) @ basis.mH
    return ((matrix.real + matrix.imag) / 2)[None]


def misses(monkeypatch, *, failure, trials):
    """How often a top eigenvalue just above the level is left, over random starts."""
    monkeypatch.setattr(loudest, "FAILURE", failure)
    packed = packed_gram(torch.cat((torch.linspace(0, 0.9, 29), torch.tensor([1.001]))).double())
    g, count = torch.Generator().manual_seed(3), 0
    for _ in range(trials):
        start = torch.randn(1, 2, 30, generator=g, dtype=torch.float64)
        monkeypatch.setattr(loudest, "_start", lambda _, start=start: start / start.norm())
        count += loudest._louder(packed, 1.0) is None
    return count


def test_the_loudest_is_left_with_at_most_the_stated_probability(monkeypatch):
    """More than `limit` misses of 400 would have a probability below 1e-6 if the bound of 0.2
    held.
    """
    limit = int(stats.binom.isf(1e-6, 400, 0.2))
    assert misses(monkeypatch, failure=0.2, trials=400) <= limit


def test_a_rule_that_gives_up_early_would_be_noticed(monkeypatch):
    assert misses(monkeypatch, failure=20.0, trials=100) > 50


def test_quiet_frequencies_are_left_and_loud_ones_named():
    values = torch.linspace(0, 1, 30).double()
    packed = torch.cat([packed_gram(values * s) for s in (0.9, 1.0, 0.8)])
    assert loudest._louder(packed, 1.001) is None
    assert loudest._louder(packed, 0.95) == 1


def test_the_value_comes_with_its_frequency():
    kernel = torch.randn(20, 20, 3, 3, generator=torch.Generator().manual_seed(0))
    found = loudest.loudest(kernel, Grams.of(kernel, (6, 5)))
    exact = float(torch.linalg.svdvals(symbol(kernel, found.angles))[0])
    assert found.value == pytest.approx(exact, rel=1e-9) and found.residual < 1e-7


def test_a_wrong_value_is_not_certified():
    grams = Grams.of(torch.randn(8, 8, 3, 3), (5, 5))
    assert not loudest.all_below(grams, 1e-3)
    assert loudest.all_below(grams, 1e3)
