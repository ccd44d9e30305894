"""The examples of a batch, shared out among processes so that the mean is that of all."""

import pytest
import torch

from secateurs_lab.train import Ranks


@pytest.mark.parametrize("examples", [1, 2, 3, 7])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_shares_make_the_mean_of_the_batch(world, examples):
    y = torch.arange(1.0, examples + 1)
    parts = [Ranks(rank=r, world=world).share(y, y) for r in range(world)]
    # Nobody is left without an example: its mean would be 0/0.
    assert all(len(x) for x, _, _ in parts)
    total = sum(weight * float(part.mean()) for _, part, weight in parts) / world
    assert total == pytest.approx(float(y.mean()))


def test_the_mean_of_all_processes_counts_examples(monkeypatch):
    """Three examples of mean 1 here, and one of 4 in the other process."""

    def all_reduce(sums):
        sums += torch.tensor([4.0, 1.0], dtype=sums.dtype)

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    cpu = torch.device("cpu")
    assert Ranks(rank=0, world=2).mean(1.0, 3, cpu) == pytest.approx(7 / 4)
    assert Ranks(rank=0, world=2).mean(0.0, 0, cpu) == pytest.approx(4)
    assert Ranks().mean(1.0, 3, cpu) == 1.0
