"""What the sizes of a file say, by hand."""

import math

import pytest

from secateurs.ship import FileSizes

SIZES = FileSizes(
    path="m.safetensors",
    bytes=150,
    header=50,
    entries=100,
    kept=25,
    dense_bytes=450,
    entropy_bytes=(100 * 0.8112781244591328 + 32 * 25) / 8,
)


def test_shares_of_a_file_by_hand():
    assert SIZES.compression == 3.0
    assert SIZES.sparsity == 0.75
    assert SIZES.of_entropy == pytest.approx(150 / 110.14, rel=1e-4)
    assert SIZES.as_dict()["compression"] == 3.0


def test_a_file_without_entries_has_shares_too():
    empty = FileSizes(
        path="m",
        bytes=90,
        header=90,
        entries=0,
        kept=0,
        dense_bytes=0,
        entropy_bytes=0.0,
    )
    assert empty.sparsity == 0.0 and empty.of_entropy == math.inf
