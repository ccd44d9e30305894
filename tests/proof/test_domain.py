"""Boxes hold exactly what they say."""

import pytest
import torch
from torch import Tensor, nn

import secateurs as sc
from secateurs.errors import DomainError
from secateurs.proof.domain import box_domain


def test_a_box_holds_nothing_beside_it():
    """A wide coordinate gives a narrow one no slack."""
    lo, hi = torch.zeros(1, 2), torch.tensor([[1e6, 1e-3]])
    domain = box_domain((lo, hi))
    inside, beside = torch.tensor([[5e5, 5e-4]]), torch.tensor([[5e5, 0.09]])
    assert domain.contains(torch.cat([inside, beside])).tolist() == [True, False]
    dense, sparse = nn.Linear(2, 2), nn.Linear(2, 2)
    certificate = sc.certify(dense, sparse, box=(lo, hi))
    with pytest.raises(DomainError, match="outside"):
        certificate.certified(beside)


def test_a_box_whose_middle_rounds_is_still_covered():
    class Wide(nn.Module):
        def __init__(self, weight: float) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((1, 1), weight, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x) @ self.weight

    box = (torch.full((1, 1), -1e8).double(), torch.full((1, 1), 1e-9).double())
    for method in ("interval", "affine", "linear"):
        assert sc.certify(Wide(2.0), Wide(1.0), box=box, methods=method).bound >= 1e-9
