"""What the sizes of a file say, by hand."""

import math

import pytest
import torch
from torch import nn

from secateurs.errors import ParameterError
from secateurs.files import FileSizes, save_sparse

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


def test_a_complex_number_counts_as_two(tmp_path):
    values = torch.complex(torch.ones(4, 4), torch.ones(4, 4))
    values[0] = 0
    values[1] = 1  # its imaginary part is zero
    sizes = save_sparse({"w": values}, tmp_path / "file.safetensors")
    assert (sizes.entries, sizes.kept) == (32, 20) and sizes.sparsity == 1 - 20 / 32


def test_a_sharded_model_is_refused_with_the_way_out(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        mesh = init_device_mesh("cpu", (2,))
        model = nn.Linear(4, 4)
        for name, parameter in list(model.named_parameters()):
            piece = distribute_tensor(parameter.detach(), mesh, [Shard(0)])
            setattr(model, name, nn.Parameter(piece))
        with pytest.raises(ParameterError, match=r"2 tensor.*in pieces.*get_model_state_dict"):
            save_sparse(model, tmp_path / "file.safetensors")
    finally:
        torch.distributed.destroy_process_group()
    assert not list(tmp_path.iterdir())
