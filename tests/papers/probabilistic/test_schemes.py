"""The schemes of the probabilistic paper: exact counts, the right entries, dense first and last
layers.
"""

import math

import pytest
import torch
from scipy import stats
from torch import nn

from experiments.probabilistic import SCHEMES, prune_by_scheme
from secateurs.errors import ArgumentError, TheoryError, UnknownNameError


@pytest.fixture
def model():
    return nn.Sequential(
        nn.Conv2d(3, 12, 3),
        nn.Conv2d(12, 12, 3),
        nn.Conv2d(12, 10, 3),
        nn.Linear(10, 4),
    )


@pytest.mark.parametrize("scheme", SCHEMES.names())
@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_counts_and_layers(model, scheme, alpha, generator):
    masks = prune_by_scheme(model, scheme, alpha=alpha, generator=generator)
    assert list(masks) == ["1.weight", "2.weight"]
    gone = {name: int((~m).sum()) for name, m in masks.items()}
    for name, index in (("1.weight", 1), ("2.weight", 2)):
        weight = model[index].weight
        limit = math.floor(weight.numel() ** (1 - alpha))
        if scheme.startswith("filters"):
            limit = 9 * math.floor((weight.shape[0] * weight.shape[1]) ** (1 - alpha / 2))
        if scheme in ("magnitude-layer", "random-without", "filters-magnitude"):
            assert gone[name] == limit
        elif scheme != "magnitude-global":
            assert 0 < gone[name] <= limit
    if scheme == "magnitude-global":
        assert sum(gone.values()) == sum(
            math.floor(model[i].weight.numel() ** (1 - alpha)) for i in (1, 2)
        )


def test_the_smallest_go(model):
    layer = prune_by_scheme(model, "magnitude-layer", alpha=0.3)["1.weight"]
    assert model[1].weight[~layer].abs().max() <= model[1].weight[layer].abs().min()
    kernels = prune_by_scheme(model, "filters-magnitude", alpha=0.3)["1.weight"]
    sizes, kept = model[1].weight.abs().sum((2, 3)), kernels.all((2, 3))
    assert torch.equal(kept, kernels.any((2, 3))) and sizes[~kept].max() <= sizes[kept].min()


def test_with_replacement_hits_as_often_as_it_should(model, generator):
    """Each position survives with probability (1 − 1/D)^N; 200 masks, chance of failure below 1e-7
    (exact binomial).
    """
    size = model[1].weight.numel()
    draws = math.floor(size**0.9)
    kept = [
        prune_by_scheme(model, "random-with", alpha=0.1, generator=generator)["1.weight"].flatten()[
            7
        ]
        for _ in range(200)
    ]
    chance = stats.binom.cdf(sum(map(int, kept)), 200, (1 - 1 / size) ** draws)
    assert 1e-7 / 2 < chance < 1 - 1e-7 / 2


def test_bad_input(model):
    with pytest.raises(UnknownNameError, match="Did you mean 'random-with'"):
        prune_by_scheme(model, "random-wiht", alpha=0.5)
    with pytest.raises(ArgumentError, match=r"alpha = 0 is not in \(0, 1\)"):
        prune_by_scheme(model, "random-with", alpha=0.0)
    with pytest.raises(TheoryError, match="nothing to prune among 2 weights"):
        prune_by_scheme(
            nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)),
            "magnitude-layer",
            alpha=0.5,
        )
