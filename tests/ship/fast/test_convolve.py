"""Every layout, tile and block of every convolution equals torch, for one image and for groups."""

import ctypes
import math

import numpy as np
import pytest
import torch

from secateurs.ship.fast import choose, compiled, convolve
from secateurs.ship.fast.operations import Conv
from ship.fast.fast_cases import GRID, Case, close, conv, expected, kernels, run, ways

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("case", GRID, ids=range(len(GRID)))
def test_every_way_equals_torch(case: Case, group: int, dtype: torch.dtype, generator):
    op = conv(case, generator)
    x = torch.randn(group * 2, case.inp, *case.size, generator=generator, dtype=dtype)
    blank = torch.zeros((), dtype=dtype)
    shape = expected(op, x, blank if case.added else None).shape
    added = torch.randn(shape, generator=generator, dtype=dtype) if case.added else None
    wanted = expected(op, x, added)
    lanes = kernels().lanes[dtype]
    for choice in ways(op, group, (case.inp, *case.size), lanes):
        found = run(op, x, added, choice, group)
        assert close(found, wanted, TOLERANCE[dtype]), f"{choice} of {case}"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", GRID, ids=range(len(GRID)))
def test_a_divided_image_has_the_same_bits(case: Case, dtype: torch.dtype, generator):
    """Every channel is computed as before, only by another thread."""
    op = conv(case, generator)
    x = torch.randn(1, case.inp, *case.size, generator=generator, dtype=dtype)
    blank = torch.zeros((), dtype=dtype)
    shape = expected(op, x, blank if case.added else None).shape
    added = torch.randn(shape, generator=generator, dtype=dtype) if case.added else None
    lanes = kernels().lanes[dtype]
    for choice in ways(op, 1, (case.inp, *case.size), lanes):
        alone = run(op, x, added, choice, 1)
        for threads in (2, 3):
            assert torch.equal(run(op, x, added, choice, 1, threads), alone), choice


def test_narrow_planes_of_two_threads_do_not_meet(generator):
    """Where a vector is longer than a row, the end of a channel runs over into the next."""
    many = 4096  # enough for the second thread to begin
    case = Case(
        inp=many, out=many, size=(4, 4), kernel=(3, 3), padding=(1, 1), groups=many, density=1.0
    )
    op = conv(case, generator)
    x = torch.randn(1, many, 4, 4, generator=generator)
    (choice, *_) = [way for way in ways(op, 1, (many, 4, 4), 16) if way.layout == "near"]
    alone = run(op, x, None, choice, 1)
    for _ in range(20):
        assert torch.equal(run(op, x, None, choice, 1, 2), alone)


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
        assert np.array_equal(entries["value"][:, 0], op.weight[op.weight != 0].astype(np.float32))


def test_frozen_plane_strides():
    assert [convolve.stride(n, 4) for n in (1, 2, 16, 17, 1024)] == [
        1,
        16,
        16,
        48,
        1040,
    ]


class Seen:
    """In place of the kernels: what would be timed."""

    lanes, registers = {torch.float32: 16}, 32

    def __init__(self):
        self.timed = []

    def time(self, op, dtype, numbers, group, rounds):
        body = ctypes.cast(op.body, ctypes.POINTER(compiled.ConvKernel)).contents
        self.timed.append((op.name, body.listed))
        return 1.0


def test_a_layer_alone_is_timed_with_all_of_its_outputs(generator):
    """Dot products leave out what nobody reads: nothing at all would be quick."""
    op = conv(Case(inp=6, out=4, size=(1, 1), kernel=(1, 1), padding=(0, 0)), generator)
    seen = Seen()
    planes = {"x": (6, 1, 1), "y": (4, 1, 1)}
    choose.Timed(library=seen, dtype=torch.float32, planes=planes)(op, 1)
    assert seen.timed == 2 * [(compiled.KINDS[compiled.ConvKernel], 4)]


def test_depthwise_layers_read_their_input_in_place(generator):
    """Columns of the kernel first where most of it is there, single weights where little is."""
    for density, first in ((1.0, 3), (0.2, 1)):
        op = conv(Case(groups=8, inp=8, out=8, density=density), generator)
        found = convolve.near_candidates(op, (8, 7, 9), 1)
        assert {choice.layout for choice in found} == {"near"}
        assert found[0].block == first
    strided = conv(Case(groups=4, inp=4, out=4, stride=(2, 1)), generator)
    assert convolve.near_blocks(strided) == [1]


def test_a_tap_is_a_column_of_the_kernel_that_is_not_all_zero(generator):
    op = conv(Case(groups=4, inp=4, out=4, density=0.4), generator)
    for block, kept in ((1, op.weight != 0), (3, op.weight.any(axis=2))):
        choice = convolve.Choice(layout="near", tile=4, block=block)
        taps, starts = convolve.near_taps(op, choice, 100, 9, np.float32)
        assert len(taps) == np.count_nonzero(kept) == starts[-1]
        assert taps["value"].sum() == pytest.approx(op.weight.sum(), rel=1e-5)


@pytest.mark.parametrize("channels", [3, 64])
@pytest.mark.parametrize("size", [8, 56])
def test_the_rows_of_tiles_at_a_time_fit_the_cache_they_are_meant_for(channels, size):
    """16 transformed numbers per tile and channel; more rows than there are make no sense."""
    conv = Conv(
        source="x",
        to="y",
        weight=np.ones((16, channels, 3, 3)),
        bias=np.zeros(16),
        padding=(1, 1),
    )
    found = convolve.winograd_candidates(conv, (16, size, size), 2, 32)
    wide, tall = size // 2, size // 2
    budgets = [
        min(2 * tall, max(1, numbers // (16 * channels * wide)))
        for numbers in convolve.WINOGRAD_NUMBERS
    ]
    assert [choice.parts for choice in found] == list(dict.fromkeys(budgets))


@pytest.mark.parametrize("outs", [8, 9, 15])
def test_transformed_weights_stand_in_as_few_blocks_as_hold_them(outs, generator):
    op = conv(Case(out=outs, density=1.0), generator)
    found = convolve.winograd_weights(op, 8)
    blocks = math.ceil(outs / 8)
    assert found.shape == (blocks, 16, 3, 8)
    assert not found.transpose(0, 3, 1, 2).reshape(blocks * 8, -1)[outs:].any()
