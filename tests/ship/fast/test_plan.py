"""Where values stand in the arena: nothing is read before its beginning, no gap is wasted."""

from types import SimpleNamespace

import numpy as np
import pytest

from secateurs.ship.fast.operations import Conv
from secateurs.ship.fast.plan import Arena, _put, _take


@pytest.mark.parametrize("padding", [(0, 0), (3, 0), (0, 200), (5, 5)])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 2)])
def test_the_margin_covers_what_a_convolution_reads_before_its_plane(kernel, padding):
    """The first tap of the first output lies `padding` rows and columns before the plane."""
    conv = Conv(
        source="x",
        to="y",
        weight=np.ones((1, 1, *kernel)),
        bias=np.zeros(1),
        padding=padding,
        dilation=(2, 1),
    )
    planes = {"x": (1, 6, 50)}
    arena = SimpleNamespace(segment=SimpleNamespace(operations=[conv], planes=planes))
    before = padding[0] * 50 + padding[1]
    beyond = 2 * (kernel[0] - 1) * 50 + kernel[1] - 1
    assert Arena._margin(arena) >= before + beyond


def test_a_gap_that_fits_exactly_is_filled():
    free = [(0, 4), (10, 100)]
    assert _take(free, 4) == 0
    assert _take(free, 4) == 10
    _put(free, 0, 4)
    assert _take(free, 3) == 0
