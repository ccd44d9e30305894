"""The reader printed in docs/format.md reads what we write, and files of this version written long
ago."""

import json
import re
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from files.random_models import random_state
from secateurs.files import read_sparse, save_sparse

PAGE = Path(__file__).parents[2] / "docs" / "format.md"
GOLDEN = Path(__file__).parents[1] / "files" / "golden"


def reader():
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S).group(1)
    body = code[code.index("def read(") :].strip().splitlines()
    assert len(body) < 30, "the page promises under thirty lines"
    scope = {}
    exec(code, scope)
    return scope["read"]


@pytest.mark.parametrize("block", range(4))
def test_the_printed_reader_gives_the_same_bits(block, tmp_path):
    read, path = reader(), tmp_path / "m.safetensors"
    for seed in range(1000 + 15 * block, 1015 + 15 * block):
        state = random_state(seed)
        save_sparse(state, path)
        got = dict(read(path))
        for name, value in read_sparse(path).tensors.items():
            bits = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
            assert got[name].tobytes() == bytes(
                bits.contiguous().reshape(-1).view(torch.uint8).tolist()
            ), seed
            assert got[name].shape == tuple(value.shape)


def test_the_printed_reader_reads_rounded_values(tmp_path):
    weight = torch.randn(6, 5).masked_fill(torch.rand(6, 5) < 0.5, 0)
    save_sparse({"w": weight}, tmp_path / "m", values="int8")
    (_, integers), (_, scales) = reader()(tmp_path / "m")
    assert torch.equal(
        torch.tensor(integers * scales[:, None]),
        read_sparse(tmp_path / "m").tensors["w"],
    )


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.safetensors")), ids=lambda path: path.stem)
def test_files_of_this_version_are_read_for_good(path):
    """Never write these files anew: they stand for what users have."""
    known = json.loads(path.with_suffix(".json").read_text())
    file = read_sparse(path)
    assert {name: digest(tensor) for name, tensor in file.state.items()} == known["tensors"]
    assert file.ties == known["ties"]
    assert file.certificate == known["certificate"]
    assert file.notes == known["notes"]
    assert file.changed.as_dict() == known.get("changed", {"resized": {}, "blocks": {}})


def test_there_are_golden_files():
    assert len(list(GOLDEN.glob("*.safetensors"))) >= 5


def digest(tensor):
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    data = bytes(real.contiguous().reshape(-1).view(torch.uint8).tolist())
    return [str(tensor.dtype), list(tensor.shape), sha256(data).hexdigest()]
