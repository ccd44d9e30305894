"""The error of a sum of n products."""

import pytest
import torch

import secateurs as sc
from secateurs.proof.forms import gamma, terms, terms_back
from secateurs.proof.rounding import unit_roundoff


def test_gamma():
    assert gamma(10, 0.0) == 0.0
    assert gamma(1, 2.0**-24) == pytest.approx(2.0**-24)
    assert gamma(2**24, 2.0**-24) == float("inf")
    assert unit_roundoff(torch.float32) == 2.0**-24
    assert unit_roundoff(torch.float64) == 2.0**-53


def test_a_backward_sum_is_as_long_as_the_outputs_that_read_one_input():
    model = torch.nn.Conv2d(2, 7, 5, padding=2)
    (node,) = sc.capture(model, torch.zeros(1, 2, 9, 9)).nodes[1:]
    x, weight = torch.randn(3, 1, 2, 9, 9), model.weight.detach()
    assert terms(node, x, weight) == 2 * 25
    assert terms_back(node, x, weight) == 7 * 25
    assert terms_back(node, x, None) == 1
