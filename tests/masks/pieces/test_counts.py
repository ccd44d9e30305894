"""Counts beside count_nonzero: of masks and of anything, one by one and many at once."""

import pytest
import torch

from secateurs.masks import pieces
from secateurs.masks.pieces import count_each, count_true


@pytest.mark.parametrize("size", [0, 1, 2039, 2040, 2041, 4095, 4097, 300_001])
@pytest.mark.parametrize("share", [0, 0.6, 1])
def test_a_mask(size, share):
    mask = torch.rand(size, generator=torch.Generator().manual_seed(1)) < share
    assert count_true(mask) == int(mask.count_nonzero())


@pytest.mark.parametrize("offset", [1, 8, 16])
def test_parts_and_other_layouts_of_a_mask(offset):
    mask = torch.rand(40, 300, generator=torch.Generator().manual_seed(1)) < 0.6
    for view in (mask.flatten()[offset:], mask.T, mask[::3], mask[:, 7], mask[:0]):
        assert count_true(view) == int(view.count_nonzero())


@pytest.mark.parametrize("byte", [2, 128, 255])
@pytest.mark.parametrize("where", [slice(None), 0, 2039, 2040, -1])
def test_booleans_that_are_no_ones(byte, where, monkeypatch):
    """A view of bytes as booleans: any byte that is not 0 is True."""
    mask = torch.rand(100, 100, generator=torch.Generator().manual_seed(1)) < 0.6
    mask.view(-1)[[0, 2039, 2040, -1]] = True
    mask.view(torch.uint8).view(-1)[where] *= byte
    expected = int(mask.count_nonzero())
    assert count_true(mask) == expected
    assert count_each({"a": mask}) == pieces._count_there({"a": mask}) == {"a": expected}
    monkeypatch.setattr(pieces, "MANY", 1)
    assert pieces._count_there({"a": mask}) == {"a": expected}


@pytest.mark.parametrize("many", [1 << 23, 1], ids=["few", "many"])
@pytest.mark.parametrize("size", [1024, 1025, 2047, 3072, 5000])
def test_a_row_of_few_and_of_many(size, many, monkeypatch):
    """Of many, blocks are counted."""
    monkeypatch.setattr(pieces, "MANY", many)
    g = torch.Generator().manual_seed(size)
    for share in (0, 0.01, 0.5, 1):
        row = torch.rand(size, generator=g) < share
        total = int(row.count_nonzero())
        assert int(pieces.count_row(row)) == total
        ends = [1, 1023, 1024, size - 1, size]
        before = pieces._count_before(row, ends).tolist()
        assert before == [int(row[:end].count_nonzero()) for end in ends]
        for most in {0, 1, total // 2, max(0, total - 1), total}:
            left = row.clone()
            pieces.first_(left, torch.tensor(most))
            assert torch.equal(left, row & (row.cumsum(0) <= most)), (share, most)


@pytest.mark.parametrize("part", [1 << 24, 500], ids=["one part", "many parts"])
def test_many(part, monkeypatch):
    monkeypatch.setattr(pieces, "TOGETHER", part)
    g = torch.Generator().manual_seed(0)
    shapes = {"a": (40, 70), "none": (0, 3), "b": (31, 3, 3, 3), "one": (1,), "c": (63,)}
    tensors = {name: torch.randn(shape, generator=g).relu() for name, shape in shapes.items()}
    tensors["c"][5] = torch.nan
    tensors |= {f"{name}?": tensor > 0 for name, tensor in tensors.items()}
    expected = {name: int(tensor.count_nonzero()) for name, tensor in tensors.items()}
    assert count_each(tensors) == expected
    # On a GPU all are counted at once.
    assert pieces._count_there(tensors) == expected
    assert pieces._count_there({}) == {}
