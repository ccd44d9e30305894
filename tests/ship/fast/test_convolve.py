"""Every layout, tile and block of every convolution equals torch, for one image and for groups."""

import numpy as np
import pytest
import torch

from secateurs.ship.fast import convolve
from ship.fast.fast_cases import GRID, Case, close, conv, expected, kernels, run, ways

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("case", GRID, ids=range(len(GRID)))
def test_every_way_equals_torch(
    case: Case, group: int, dtype: torch.dtype, generator
):
    op = conv(case, generator)
    x = torch.randn(group * 2, case.inp, *case.size, generator=generator, dtype=dtype)
    blank = torch.zeros((), dtype=dtype)
    shape = expected(op, x, blank if case.added else None).shape
    added = (
        torch.randn(shape, generator=generator, dtype=dtype) if case.added else None
    )
    wanted = expected(op, x, added)
    lanes = kernels().lanes[dtype]
    for choice in ways(op, group, (case.inp, *case.size), lanes):
        found = run(op, x, added, choice, group)
        assert close(found, wanted, TOLERANCE[dtype]), f"{choice} of {case}"


def test_copies_keep_no_number_of_the_image_before(generator):
    """A program's memory is used again: whatever was there must not come back as padding."""
    op = conv(Case(size=(6, 6), density=1.0), generator)
    dirty = torch.full((2, 3, 6, 6), float("nan"), dtype=torch.float64)
    x = torch.randn(2, 3, 6, 6, generator=generator, dtype=torch.float64)
    for choice in ways(op, 1, (3, 6, 6), 8):
        both = run(op, torch.cat([dirty, x]), None, choice, 1)
        assert close(both[2:], expected(op, x, None), 1e-12), choice


def test_dead_channels_are_not_copied(generator):
    op = conv(Case(inp=4, density=1.0), generator)
    op.weight[:, 2] = 0
    made = convolve.copies(op, "columns", (4, 7, 9), (5, 7, 9))
    used = convolve.needed(op, made)
    assert not used[2].any() and used[[0, 1, 3]].all()


def test_an_entry_is_one_non_zero(generator):
    op = conv(Case(), generator)
    for layout in ("flat", "rows", "columns"):
        made = convolve.copies(op, layout, (3, 7, 9), (5, 7, 9))
        choice = convolve.Choice(layout=layout, tile=1, block=1)
        entries, starts = convolve.entries(op, choice, made, 100, np.float32)
        assert len(entries) == np.count_nonzero(op.weight) == starts[0, -1]
        assert np.array_equal(
            entries["value"][:, 0], op.weight[op.weight != 0].astype(np.float32)
        )


def test_frozen_plane_strides():
    assert [convolve.stride(n, 4) for n in (1, 2, 16, 17, 1024)] == [
        1,
        16,
        16,
        48,
        1040,
    ]
