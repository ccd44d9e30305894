"""Exact counts, ties, scopes, floors and errors of `select`."""

import pytest
import torch
from torch import Tensor

from secateurs.errors import ArgumentError, EmptySelectionError, MaskError, PatternError, ScoreError, UnknownNameError
from secateurs.masks import select


def scores(dtype=torch.float32) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(1)
    shapes = {"conv": (8, 4, 3, 3), "fc": (16, 12), "head": (4, 8)}
    return {name: torch.rand(shape, generator=g, dtype=torch.float64).to(dtype) for name, shape in shapes.items()}


def kept(masks) -> int:
    return sum(int(mask.sum()) for mask in masks.values())


def oracle(given: dict[str, Tensor], count: int) -> dict[str, Tensor]:
    """The obvious version: concatenate, sort stably, keep the first."""
    flat = torch.cat([score.flatten() for score in given.values()])
    mask = torch.zeros(len(flat), dtype=torch.bool)
    mask[flat.sort(descending=True, stable=True).indices[:count]] = True
    parts = mask.split([score.numel() for score in given.values()])
    return {name: part.view(given[name].shape) for name, part in zip(given, parts, strict=True)}


def equal(a, b) -> bool:
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("density", [0.0, 0.01, 0.1, 0.5, 0.77, 1.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_global_topk_equals_the_sort(dtype, density):
    given = scores(dtype)
    total = sum(score.numel() for score in given.values())
    assert equal(select(given, density=density, floor=0), oracle(given, round(density * total)))


def test_layer_counts_round_half_to_even():
    masks = select({"a": torch.rand(5), "b": torch.rand(7), "c": torch.rand(3)}, density=0.5, scope="layer")
    assert [int(mask.sum()) for mask in masks.values()] == [2, 4, 2]


def test_no_layer_loses_its_last_entry_unless_asked():
    given = {"big": torch.rand(100) + 1, "small": torch.rand(4)}
    assert int(select(given, density=0.25)["small"].sum()) == 1
    assert kept(select(given, density=0.25)) == 26
    assert int(select(given, density=0.25, floor=0)["small"].sum()) == 0


def test_equal_scores_keep_the_exact_count_and_the_first():
    masks = select({"a": torch.ones(3, 3), "b": torch.ones(4)}, density=6 / 13, floor=0)
    assert masks["a"].flatten().tolist() == [True] * 6 + [False] * 3
    assert not masks["b"].any()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({}, ArgumentError, "give sparsity=, density= or compression="),
        ({"sparsity": 0.5, "density": 0.5}, ArgumentError, "sparsity=0.5, density=0.5"),
        ({"sparsity": 1.2}, ArgumentError, "sparsity=1.2 is not between 0 and 1"),
        ({"compression": 0.5}, ArgumentError, "compression=0.5 is below 1"),
        ({"density": float("nan")}, ArgumentError, "density=nan is not a finite number"),
        ({"density": 0.5, "scope": "golbal"}, UnknownNameError, "Did you mean 'global'"),
        ({"density": 0.5, "pattern": "kernal"}, UnknownNameError, "Did you mean 'kernel'"),
        ({"density": 0.5, "pattern": "kernel"}, PatternError, r"'fc' \(16, 12\) has no spatial kernel"),
        ({"density": 0.5, "pattern": "3:7"}, PatternError, r"'conv' \(8, 4, 3, 3\) has 4 inputs, which 7 does not"),
        ({"density": 0.6, "pattern": "2:4"}, ArgumentError, r"leave only 256 \(density 0.5\)"),
        ({"density": 0.5, "within": {"cov": torch.ones(1)}}, MaskError, "Did you mean 'conv'"),
        ({"density": 0.001}, ArgumentError, "1 entries cannot keep the floor of 3"),
    ],
)
def test_errors(options, error, text):
    with pytest.raises(error, match=text):
        select(scores(), **options)


def test_bad_scores_are_named_together():
    given = {
        **scores(),
        "nan": torch.tensor([1.0, torch.nan]),
        "inf": torch.tensor([torch.inf]),
        "int": torch.ones(2).int(),
    }
    with pytest.raises(ScoreError) as caught:
        select(given, density=0.5)
    for text in ("3 of 6", "'nan' has 1 NaN or infinite", "'inf' has 1", "'int' has torch.int32"):
        assert text in str(caught.value)


def test_nothing_to_select_from():
    with pytest.raises(EmptySelectionError):
        select({}, density=0.5)
