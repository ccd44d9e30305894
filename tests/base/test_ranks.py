"""Numbers of every process: where they are gathered."""

import pytest
import torch
import torch.distributed as dist

from secateurs.base import ranks

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
    monkeypatch.setattr(dist, "get_backend", lambda: backend)
    assert ranks._moves_from(torch.device("cuda")).type == expected
