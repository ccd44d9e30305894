"""Large tensors are read piece by piece."""

from fractions import Fraction

import pytest
import torch

from secateurs.masks import select
from secateurs.masks.pieces import PIECE, pieces


@pytest.mark.parametrize(
    "shape",
    [
        (),
        (0,),
        (7,),
        (3, 0, 2),
        (2, 3, 5),
        (PIECE + 3,),
        (2, PIECE + 1),
        (1, 2, 3, 4),
    ],
)
def test_pieces_are_the_tensor_in_order(shape):
    tensor = torch.arange(torch.Size(shape).numel()).view(shape)
    for layout in (
        tensor,
        tensor.movedim(0, -1).contiguous().movedim(-1, 0) if shape else tensor,
    ):
        parts = list(pieces(layout))
        assert all(part.ndim == 1 and len(part) <= PIECE for part in parts)
        assert torch.equal(torch.cat([*parts, torch.empty(0, dtype=torch.int64)]), tensor.flatten())
        assert [len(part) for part in parts] == [len(part) for part in pieces(tensor)]


def test_several_pieces_per_tensor_are_ranked_together():
    given = {
        "a": torch.rand(700, 1000, dtype=torch.float64),
        "b": torch.rand(PIECE + 5, dtype=torch.float64),
    }
    masks = select(given, density=0.01)
    threshold = (
        torch.cat([score.flatten() for score in given.values()])
        .sort(descending=True)
        .values[9621 - 1]
    )
    assert sum(int(mask.sum()) for mask in masks.values()) == 9621
    assert all(torch.equal(mask, given[name] >= threshold) for name, mask in masks.items())


def test_ties_across_pieces_go_to_the_earlier():
    given = {"a": torch.ones(3, PIECE // 2), "b": torch.ones(5)}
    masks = select(given, density=Fraction(PIECE + 7, 3 * (PIECE // 2) + 5), floor=0)
    flat = masks["a"].flatten()
    assert bool(flat[: PIECE + 7].all()) and not flat[PIECE + 7 :].any() and not masks["b"].any()
