"""Probes: data for scores without data."""

import math

import pytest
import torch
from scipy.stats import chisquare, kstest
from torch import nn
from torch.nn import functional as F

import secateurs as sc
from secateurs.errors import ArgumentError, UnknownNameError
from secateurs.scores import PROBES, l1, probe

LIKE = torch.empty(2, 3, 8, 8)


def seeded():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("kind", PROBES.names())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_shape_dtype_labels_and_reproducibility(kind, dtype):
    x, y = probe(kind, LIKE.to(dtype), examples=32, classes=10, generator=seeded())
    again, labels = probe(kind, LIKE.to(dtype), examples=32, classes=10, generator=seeded())
    assert x.shape == (32, 3, 8, 8) and x.dtype == dtype and torch.isfinite(x).all()
    assert y.shape == (32,) and int(y.min()) >= 0 and int(y.max()) < 10
    assert torch.equal(x, again) and torch.equal(y, labels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sparse_data_has_exactly_one_image_at_each_position(dtype):
    x, _ = probe(
        "sparse",
        torch.empty(1, 3, 64, 64, dtype=dtype),
        examples=16,
        mean=[0.0, 0.5, 1.0],
        generator=seeded(),
    )
    assert bool(((x != 0).sum(0) == 1).all())
    per_image = (x != 0).flatten(1).sum(1)
    assert chisquare(per_image.numpy()).pvalue > 1e-4  # every image is as likely


def test_mean_and_standard_deviation_are_those_of_the_data_per_channel():
    mean, std = [0.5, -1.0, 2.0], [0.1, 1.0, 3.0]
    for kind in ("random", "sparse"):
        x, _ = probe(
            kind,
            torch.empty(1, 3, 64, 64),
            examples=16,
            mean=mean,
            std=std,
            generator=seeded(),
        )
        for channel in range(3):
            values = x[:, channel][x[:, channel] != 0]
            assert kstest(((values - mean[channel]) / std[channel]).numpy(), "norm").pvalue > 1e-4


def test_chi_and_ones():
    x, _ = probe("chi", torch.empty(1, 100), examples=50, generator=seeded())
    assert kstest(x.flatten().numpy() * math.sqrt(128), "chi", args=(128,)).pvalue > 1e-4
    assert bool((probe("ones", LIKE, examples=2)[0] == 1).all())


def test_without_classes_the_loss_is_l1_against_zero():
    net = nn.Linear(5, 3)
    x, y = probe("random", torch.empty(1, 5), examples=4, generator=seeded())
    assert float(l1(net(x), y).detach()) == pytest.approx(
        float(net(x).detach().abs().sum(1).mean())
    )


def test_l1_takes_labels_as_one_hot():
    output, labels = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    assert float(l1(output, labels)) == pytest.approx(
        float((output - F.one_hot(labels, 3)).abs().sum(1).mean())
    )


def test_unsupervised_snip_is_one_call():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    batch = probe("sparse", LIKE, examples=32, classes=10, generator=seeded())
    scores = sc.score(net, "snip", batch=batch, loss=F.cross_entropy)
    assert all(float(s.sum()) > 0 for s in scores.values())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"examples": 0}, "examples is 0"),
        ({"classes": 0}, "classes 0; both must be at least 1"),
        ({"std": 0.0}, r"std is \[0.0\]; it must be positive"),
        (
            {"mean": [0.0, 1.0]},
            r"mean has shape \(2,\); give one number or one for each of 3 channels",
        ),
        (
            {"like": torch.zeros(2, 3, dtype=torch.long)},
            "like is torch.int64 of shape",
        ),
        ({"like": torch.zeros(2)}, r"shape \(2,\); give a batch"),
    ],
)
def test_errors(changes, words):
    arguments = {"like": LIKE, **changes}
    with pytest.raises(ArgumentError, match=words):
        probe("sparse", arguments.pop("like"), **arguments)


def test_an_unknown_kind_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="no probe 'spares'. Did you mean 'sparse'"):
        probe("spares", LIKE)
