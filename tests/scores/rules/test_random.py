"""Random scores are uniform."""

import torch
from scipy.stats import kstest
from torch import nn

import secateurs as sc


def test_random_is_uniform():
    scores = sc.score(nn.Linear(100, 100), "random", generator=torch.Generator().manual_seed(0))[
        "weight"
    ]
    assert float(scores.min()) > 0 and float(scores.max()) <= 1
    assert kstest(scores.flatten().numpy(), "uniform").pvalue > 1e-4
