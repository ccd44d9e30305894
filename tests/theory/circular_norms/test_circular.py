"""Circular convolutions: every singular value by lemma 7."""

import pytest
import torch

from secateurs.theory import circular_norms as circular_norm
from secateurs.theory import conv_operator_norm, lemma_7
from theory.operator_norms.dense import dense


def test_lemma_7_gives_every_singular_value():
    weight = torch.randn(3, 3, 3, 3, dtype=torch.float64)
    expected = torch.linalg.svdvals(dense(weight, (5, 4), padding="circular"))
    torch.testing.assert_close(lemma_7(weight, (5, 4)), expected)


@pytest.mark.parametrize("shape", [(20, 30, 3, 3), (30, 20, 3, 3), (20, 20, 1, 5), (20, 20, 4)])
def test_the_gram_way_equals_the_singular_values(shape, monkeypatch):
    weight, size = torch.randn(shape), (6, 7)[: len(shape) - 2]
    exact = conv_operator_norm(weight, size)
    monkeypatch.setattr(circular_norm, "_DENSE_SIDE", 8)
    found = conv_operator_norm(weight, size, certify=True)
    assert exact.exact and exact.failure is None
    assert found.exact and found.failure is None and "Cholesky" in found.method
    assert found.value == pytest.approx(exact.value, rel=1e-6)
    assert found.lower <= exact.value * (1 + 1e-9) and exact.value <= found.upper
    searched = conv_operator_norm(weight, size)
    assert not searched.exact and searched.failure == 1e-6 and searched.upper >= exact.value
