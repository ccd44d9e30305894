"""A small problem of sketching whose expectations can be enumerated."""

import pytest
import torch

from secateurs.theory import sketch_probabilities


@pytest.fixture
def case():
    g = torch.Generator().manual_seed(1)
    X, w0, w = (
        torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((4, 3), (4,), (4,))
    )
    return X, w0, w, sketch_probabilities(X, w0)
