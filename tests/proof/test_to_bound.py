"""Budget mode: the largest sparsity whose certificate holds, and an untouched model when it
fails.
"""

import copy

import pytest
import torch

import secateurs as sc
from secateurs.errors import ArgumentError, DomainError, UnknownNameError
from tiny_networks import KINDS, fully_connected, randomize


@pytest.fixture
def model(generator):
    return randomize(fully_connected(), generator)


X = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("methods", ["auto", "path-metric", "two-stream", "interval"])
def test_the_certificate_holds_and_a_little_more_does_not(methods, model):
    dense = copy.deepcopy(model)
    bound = (
        sc.certify(
            dense,
            _pruned(dense, 0.4),
            around=X,
            radius=0.1,
            methods=methods,
            restarts=0,
        ).bound
        * 1.001
    )
    result = sc.prune_to_bound_(model, X, bound=bound, radius=0.1, methods=methods, tolerance=0.01)
    again = sc.certify(dense, model, around=X, radius=0.1, methods=methods)
    assert again.bound == result.certificate.bound <= bound
    assert again.lower_bound <= bound
    assert result.sparsity >= 0.39
    allowed = [s for s, b in result.tried if b <= bound]
    refused = [s for s, b in result.tried if b > bound]
    assert max(allowed) == result.sparsity
    if methods in {"path-metric", "two-stream"}:  # monotone: nothing above may hold
        assert min(refused) > result.sparsity


def test_masks_are_what_was_applied(model):
    dense = copy.deepcopy(model)
    result = sc.prune_to_bound_(model, X, bound=1.0, radius=0.1)
    sc.apply_(dense, result.masks)
    assert all(
        torch.equal(a, b) for a, b in zip(dense.parameters(), model.parameters(), strict=True)
    )
    kept = sum(int(m.sum()) for m in result.masks.values())
    total = sum(m.numel() for m in result.masks.values())
    assert result.sparsity == pytest.approx(1 - kept / total)
    assert str(result).startswith(f"sparsity {result.sparsity:.4f} after ")


def test_a_zero_bound_prunes_only_what_carries_nothing(model):
    before = state(model)
    result = sc.prune_to_bound_(model, X, bound=0.0, radius=0.1)
    assert result.sparsity == 0.0
    assert all(bool(m.all()) for m in result.masks.values())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_a_huge_bound_prunes_everything(model):
    assert sc.prune_to_bound_(model, X, bound=1e9, radius=0.1).sparsity == 1.0


def test_a_box_and_a_convolution(generator):
    make, shape = KINDS["batch norm"]
    model = randomize(make(), generator)
    x = torch.zeros(1, *shape)
    result = sc.prune_to_bound_(model, x, bound=0.5, box=(-1.0, 1.0), scope="layer", tolerance=0.05)
    assert 0 < result.sparsity < 1
    assert result.certificate.bound <= 0.5


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"bound": -1.0, "radius": 0.1}, ArgumentError, "bound=-1"),
        ({"bound": float("nan"), "radius": 0.1}, ArgumentError, "bound=nan"),
        ({"bound": 1.0}, ArgumentError, "either box"),
        (
            {"bound": 1.0, "radius": 0.1, "box": (0.0, 1.0)},
            ArgumentError,
            "either box",
        ),
        (
            {"bound": 1.0, "radius": 0.1, "tolerance": 0.0},
            ArgumentError,
            "tolerance=0",
        ),
        ({"bound": 1.0, "radius": -0.1}, DomainError, "radius=-0.1"),
        (
            {"bound": 1.0, "radius": 0.1, "score": "magnitud"},
            UnknownNameError,
            "magnitude",
        ),
        (
            {"bound": 1.0, "radius": 0.1, "methods": "nothing"},
            UnknownNameError,
            "no certificate method",
        ),
    ],
)
def test_errors_leave_the_model_alone(options, error, text, model):
    before = state(model)
    with pytest.raises(error, match=text):
        sc.prune_to_bound_(model, X, **options)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def _pruned(model, sparsity):
    other = copy.deepcopy(model)
    sc.apply_(other, sc.select(sc.score(other, "magnitude"), sparsity=sparsity, floor=0))
    return other
