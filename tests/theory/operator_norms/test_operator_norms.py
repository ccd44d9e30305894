"""Convolution norms against the dense matrix of the map, over 200 random convolutions."""

import pytest
import torch

from secateurs.theory import conv_operator_norm
from theory.operator_norms.dense import dense, draw


@pytest.mark.parametrize("block", range(4))
def test_two_hundred_random_convolutions(block):
    for index in range(50 * block, 50 * block + 50):
        weight, size, options = draw(index)
        matrix = dense(weight, size, **options)
        exact = float(torch.linalg.svdvals(matrix)[0])
        found = conv_operator_norm(weight, size, **options)
        assert found.lower <= exact * (1 + 1e-9) and exact <= found.upper * (1 + 1e-9), (
            index,
            options,
        )
        assert found.value == pytest.approx(exact, rel=1e-6), (index, options)
        divides = all(n % options["stride"] == 0 for n in size)
        assert found.exact == (options["padding"] == "circular" and divides)
