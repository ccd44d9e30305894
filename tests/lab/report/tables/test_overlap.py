"""Overlaps of masks: counted on sets, and read from a store's weights."""

from itertools import pairwise

import pytest
import torch

from lab.study.example import example_store
from secateurs_lab.report.series import at, compressions, first_seeds, spread
from secateurs_lab.report.tables import overlaps, share


@pytest.mark.parametrize("seed", range(5))
def test_a_share_is_that_of_the_two_sets(seed):
    draw = torch.Generator().manual_seed(seed)
    one, other = (torch.rand(2, 200, generator=draw) < 0.3).unbind()
    left, right = (set(mask.nonzero().flatten().tolist()) for mask in (one, other))
    expected = len(left & right) / min(len(left), len(right))
    assert share(one, other) == share(other, one) == pytest.approx(expected)
    assert share(one, one) == 1.0
    assert share(one, ~one) == 0.0
    assert share(one, one & other) == 1.0  # a part of a mask agrees with the whole


def test_masks_of_a_store(tmp_path):
    with example_store(tmp_path / "a.study") as store:
        rows = store.rows()
        found = overlaps(store, rows)
        assert [each.compression for each in found] == [4.0, 64.0, 256.0]
        for each in found:
            square = torch.tensor(each.shares)
            assert torch.equal(square, square.T) and bool((square.diag() == 1).all())
            assert each.chance == pytest.approx([1 / each.compression] * len(each.names), rel=0.02)


def test_a_damaged_artefact_is_left_out(tmp_path):
    with example_store(tmp_path / "a.study") as store:
        rows = store.rows()
        before = overlaps(store, rows)[0].names
        lost = next(row for row in rows if row.label == "magnitude" and row.asked == 4)
        path = store.artefacts.path(lost.weights)
        path.write_bytes(path.read_bytes()[:-1])
        after = overlaps(store, rows)[0].names
    assert set(before) - set(after) == {"magnitude 4×"}


def test_each_method_is_shown_by_its_nearest_run(tmp_path):
    with example_store(tmp_path / "a.study") as store:
        first = first_seeds(store.rows())
    for compression in compressions(first):
        near = at(first, compression)
        assert len({row.label for row in near}) == len(near)
        for row in near:
            others = [r for r in first if r.label == row.label]
            far = [abs(r.compression / compression - 1) for r in others]
            assert abs(row.compression / compression - 1) == min(far) < 0.5


@pytest.mark.parametrize("count", [0, 1, 23, 24, 25, 100])
def test_a_choice_holds_both_ends_in_order(count):
    entries = list(range(count))
    found = spread(entries)
    assert len(found) == min(count, 24)
    assert found[:1] == entries[:1] and found[-1:] == entries[-1:]
    assert all(a < b for a, b in pairwise(found))
