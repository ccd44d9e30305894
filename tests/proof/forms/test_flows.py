"""Flows behind the certificates: rounding errors, slopes beyond [0, 1], tapes, and what they
refuse.
"""

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import DomainError
from tiny_networks import KINDS, pruned, randomize


class TwoInputs(nn.Module):
    def forward(self, x, y):
        return x + y


def test_one_input_only():
    with pytest.raises((DomainError, ValueError)):
        sc.certify(TwoInputs(), TwoInputs(), around=torch.zeros(1, 2), radius=0.1)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_extreme_scales(scale, generator):
    dense = randomize(KINDS["fully connected"][0]().double(), generator)
    with torch.no_grad():
        for parameter in dense[0].parameters():
            parameter.mul_(scale)
    sparse = pruned(dense, generator)
    x = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    cert = sc.certify(dense, sparse, around=x, radius=0.01)
    assert cert.lower_bound <= cert.bound
    assert 1 <= cert.tightness < 2
