"""A dense network and inputs for it, as fixtures."""

import pytest
import torch

from tiny_networks import fully_connected, randomize


@pytest.fixture
def dense(generator):
    return randomize(fully_connected(), generator)


@pytest.fixture
def x():
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
