"""Memory that is used again: never while anything refers to it."""

import gc

import pytest
import torch

from secateurs.proof import slabs
from secateurs.proof.slabs import Slabs

LIKE = torch.zeros(1, dtype=torch.float64)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(slabs, "_LARGE", 4)


def test_what_nothing_refers_to_is_lent_again():
    pool = Slabs()
    one = pool.empty(LIKE, (4, 5))
    where = one.data_ptr()
    assert one.shape == (4, 5) and one.dtype == torch.float64 and where % 64 == 0
    del one
    assert pool.empty(LIKE, (2, 3, 4)).data_ptr() == where


def test_a_view_keeps_its_memory():
    pool = Slabs()
    one = pool.empty(LIKE, (4, 5)).fill_(1.0)
    part = one[1:, 2]
    del one
    gc.collect()
    others = [pool.empty(LIKE, (4, 5)).fill_(2.0) for _ in range(3)]
    assert bool((part == 1).all()) and len({o.data_ptr() for o in others}) == 3


def test_the_smallest_that_fits_is_lent_and_what_is_too_small_is_freed():
    pool = Slabs()
    sizes = {n: pool.empty(LIKE, (n,)) for n in (100, 1000)}
    places = {n: one.data_ptr() for n, one in sizes.items()}
    del sizes
    middle, small = pool.empty(LIKE, (500,)), pool.empty(LIKE, (90,))
    assert (middle.data_ptr(), small.data_ptr()) == (places[1000], places[100])
    del middle
    large = pool.empty(LIKE, (10_000,)).fill_(3.0)
    assert not pool._free and float(large.sum()) == 30_000


def test_tensors_outlive_what_lent_them():
    one = Slabs().empty(LIKE, (1000,)).fill_(5.0)
    gc.collect()
    torch.empty(1250, dtype=torch.float64).fill_(0.0)
    assert float(one.sum()) == 5000


def test_small_tensors_are_ordinary_ones():
    pool = Slabs()
    one = pool.empty(LIKE, (3,))
    del one
    assert not pool._free
