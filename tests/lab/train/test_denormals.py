"""Denormals are flushed inside the block, on every thread, and as before outside."""

import pytest
import torch

from secateurs_lab.train import flushed_denormals

TINY = 1e-38


def flushed(size: int) -> bool:
    return bool((torch.full((size,), TINY) * 1e-3 == 0).all())


@pytest.fixture
def _two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_two_threads")
def test_flushed_inside_and_restored_outside():
    assert not flushed(10)
    with flushed_denormals() as able:
        if not able:
            pytest.skip("this CPU cannot flush denormals")
        assert flushed(10) and flushed(2_000_000)
        with flushed_denormals():
            pass
        assert flushed(10)  # a block within a block leaves it as it found it
    assert not flushed(10) and not flushed(2_000_000)


def test_restored_after_an_error():
    with pytest.raises(KeyError), flushed_denormals():
        raise KeyError
    assert not flushed(10)
