"""The threshold is the value of the rank."""

import pytest
import torch

from secateurs.errors import ArgumentError
from secateurs.masks.topk import kth_largest, largest_of_rows


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_threshold_is_the_value_of_the_rank(dtype):
    """All paths: buckets that are gathered, and buckets too full for that (equal upper bits, two
    million entries).
    """
    spread = torch.randn(5000, dtype=torch.float64).to(dtype)
    crowded = (1 + torch.rand(1 << 21, dtype=torch.float64) * 1e-4).to(dtype)
    for values in (
        spread,
        spread * 0,
        torch.cat([spread, -spread]),
        crowded,
        -crowded,
    ):
        expected = values.sort(descending=True).values
        magnitudes = values.abs().sort(descending=True).values
        for rank in (1, 2, len(values) // 3, len(values)):
            cut = kth_largest(lambda values=values: iter(values.split(1000000)), rank, dtype)
            assert cut.value == expected[rank - 1]
            assert cut.ties == rank - int((values > cut.value).sum())
            size = kth_largest(
                lambda values=values: iter(values.split(1000000)),
                rank,
                dtype,
                absolute=True,
            )
            assert size.value == magnitudes[rank - 1]
            assert size.ties == rank - int((magnitudes > size.value).sum())


def test_threshold_refuses_what_it_cannot_read():
    with pytest.raises(ArgumentError, match="no threshold for torch.int32"):
        kth_largest(lambda: iter([torch.ones(3).int()]), 1, torch.int32)
    with pytest.raises(ArgumentError, match="rank 4 was requested among 3"):
        kth_largest(lambda: iter([torch.ones(3)]), 4, torch.float32)


@pytest.mark.parametrize("allowed", [None, 0.0, 0.4, 0.9])
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (2, 3), (5, 8)])
def test_rows_keep_alike_one_entry_after_the_other(shape, allowed):
    draw = torch.Generator().manual_seed(0)
    for _ in range(5):
        score = (2 * torch.randn(shape, generator=draw)).round()
        fence = None if allowed is None else torch.rand(shape, generator=draw) < allowed
        rows = torch.ones(shape, dtype=torch.bool) if fence is None else fence
        order = [
            [i for i in row.sort(descending=True, stable=True).indices.tolist() if may[i]]
            for row, may in zip(score, rows, strict=True)
        ]
        turns = [
            (r, row[t]) for t in range(shape[1]) for r, row in enumerate(order) if t < len(row)
        ]
        for count in range(len(turns) + 1):
            expected = torch.zeros(shape, dtype=torch.bool)
            for place in turns[:count]:
                expected[place] = True
            assert torch.equal(largest_of_rows(score, count, fence), expected)
