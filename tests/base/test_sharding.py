"""Numbers of every process: where they are gathered."""

import pytest
import torch
import torch.distributed as dist

from secateurs.base import sharding

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="needs torch.distributed")


@pytest.mark.parametrize(
    "backend, expected",
    [
        ("nccl", "cuda"),
        ("cuda:nccl", "cuda"),
        ("cpu:gloo,cuda:nccl", "cpu"),
        ("gloo", "cpu"),
        ("mpi", "cpu"),
    ],
)
def test_numbers_are_gathered_where_the_backend_moves_them(backend, expected, monkeypatch):
    monkeypatch.setattr(dist, "get_backend", lambda group: backend)
    assert sharding._moves_from(torch.device("cuda")).type == expected


def test_sums_of_three_processes(monkeypatch):
    others = [torch.tensor([1, 2]), torch.tensor([10, 20]), torch.tensor([100, 200])]
    monkeypatch.setattr(dist, "get_backend", lambda group: "gloo")
    monkeypatch.setattr(dist, "all_reduce", lambda values, group: values.copy_(sum(others)))
    values = others[1].clone()
    sharding.add_(values, None)
    assert values.tolist() == [111, 222]
