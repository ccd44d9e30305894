"""Factors whose product is Gaussian: the series of the paper, corrected."""

import math

import pytest
import torch

from experiments.factorization import gaussian_start
from secateurs.optim.factorized.maths import product
from secateurs.optim.factorized.start import kurtosis

N = 100_000


@pytest.mark.parametrize("depth", [2, 3, 4, 6])
@pytest.mark.parametrize("terms", [0, 1, 3])
def test_gaussian_product_is_gaussian(depth, terms):
    sigma = 0.05
    weight = product(
        gaussian_start.factors(
            (depth, N),
            sigma=sigma,
            terms=terms,
            generator=torch.Generator().manual_seed(3),
        ).double()
    )
    assert float(weight.std()) == pytest.approx(sigma, rel=5 / math.sqrt(2 * N))
    # var(w⁴) = 96σ⁸.
    assert kurtosis(weight[None]) == pytest.approx(3, abs=5 * math.sqrt(96 / N))
    assert abs(float((weight > 0).double().mean()) - 0.5) < 5 * 0.5 / math.sqrt(N)


def test_erratum_the_paper_cuts_the_series_too_early():
    """At k=1 the product of the paper's factors has standard deviation 0.894σ and kurtosis 15/7;
    drawn and exact.
    """
    exact = gaussian_start.moments(1, corrected=False)
    assert exact.deviation == pytest.approx(math.sqrt(0.8))
    assert exact.kurtosis == pytest.approx(15 / 7)
    generator, depth = torch.Generator().manual_seed(0), 2
    logs = torch._standard_gamma(torch.full((depth, N), 1 / depth), generator=generator)
    logs += torch._standard_gamma(torch.full((depth, N), 1 / depth), generator=generator) / 3
    weight = (math.log(2) / (2 * depth) - logs + math.log(2) / (2 * depth)).exp().prod(0).double()
    assert float(weight.square().mean().sqrt()) == pytest.approx(
        exact.deviation, rel=5 / math.sqrt(2 * N)
    )
    assert kurtosis(weight[None]) == pytest.approx(exact.kurtosis, abs=0.05)


@pytest.mark.parametrize("terms", [0, 1, 2, 5])
def test_corrected_series_has_exact_moments(terms):
    found = gaussian_start.moments(terms, depth=3)
    assert found.deviation == pytest.approx(1, abs=1e-12)
    assert found.kurtosis == pytest.approx(3, abs=1e-10)
