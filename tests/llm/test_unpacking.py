"""Bit-masked checkpoints, written here entry by entry as their format says, made plain again."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import secateurs as sc
from secateurs.errors import ArgumentError, DataError, SecateursError, SparseFileError
from secateurs.llm.shards import INDEX


def packed(name, weight, *, two_four=False):
    """The parts of a weight, by loops over its entries: rows of bits, the lowest bit first."""
    rows = weight.reshape(-1, weight.shape[-1]).tolist()
    raw = weight.reshape(-1, weight.shape[-1])
    masks, kept, offsets = [], [], []
    for number, row in enumerate(rows):
        chosen = [c for c, value in enumerate(row) if value != 0]
        if two_four:  # two of every four, even if one of them is zero
            chosen = []
            for begin in range(0, len(row), 4):
                four = sorted(range(begin, begin + 4), key=lambda c: -abs(row[c]))[:2]
                chosen += sorted(four)
        octets = [0] * ((len(row) + 7) // 8)
        for c in chosen:
            octets[c // 8] |= 1 << c % 8
        offsets.append(sum(map(len, kept)))
        masks.append(octets)
        kept.append([raw[number, c] for c in chosen])
    values = torch.stack([v for row in kept for v in row]) if any(kept) else raw.new_zeros(0)
    mask = torch.tensor(masks, dtype=torch.uint8).view(*weight.shape[:-1], -1)
    shape = torch.tensor(weight.shape)
    if two_four:
        values, shape = values.view(len(rows), -1), shape.view(-1, 1)
        return {f"{name}.compressed": values, f"{name}.bitmask": mask, f"{name}.shape": shape}
    return {
        f"{name}.compressed": values,
        f"{name}.bitmask": mask,
        f"{name}.shape": shape,
        f"{name}.row_offsets": torch.tensor(offsets),
    }


def sparse(*shape, dtype=torch.float32, seed=0):
    drawn = torch.Generator().manual_seed(seed)
    weight = torch.randn(shape, generator=drawn)
    return (weight * (torch.rand(shape, generator=drawn) < 0.4)).to(dtype)


STATE = {
    "model.layers.0.q_proj": sparse(6, 13),
    "model.layers.0.up_proj": sparse(5, 16, dtype=torch.bfloat16, seed=1),
    "model.layers.1.q_proj": sparse(3, 8, dtype=torch.float16, seed=2),
    "model.layers.1.empty": torch.zeros(2, 9),
}
PLAIN = {"model.norm.weight": torch.ones(5), "ids": torch.arange(3)}


def whole():
    parts = [packed(name, weight) for name, weight in STATE.items()]
    return {key: value for part in parts for key, value in part.items()} | PLAIN


def expected():
    return {f"{name}.weight": weight for name, weight in STATE.items()} | PLAIN


def same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype and torch.equal(found[name], value), name


def test_a_file_is_read_and_written_plain(tmp_path):
    save_file(whole(), tmp_path / "m.safetensors", metadata={"format": "pt"})
    same(sc.load_sparse(tmp_path / "m.safetensors"), expected())
    names = sc.llm.unpack_bitmasks(tmp_path / "m.safetensors", tmp_path / "out.safetensors")
    assert sorted(names) == sorted(f"{name}.weight" for name in STATE)
    same(load_file(tmp_path / "out.safetensors"), expected())


def test_two_of_four_keep_their_pairs(tmp_path):
    weight = torch.where(torch.arange(16) % 4 < 2, sparse(4, 16, seed=3), 0.0)
    file = tmp_path / "m.safetensors"
    save_file(packed("fc", weight, two_four=True), file)
    same(sc.load_sparse(file), {"fc.weight": weight})
    layer = torch.nn.Sequential()
    layer.fc = torch.nn.Linear(16, 4, bias=False)
    assert torch.equal(sc.load_sparse(file, into=layer).fc.weight, weight)


def test_small_floats_convolutions_and_a_nameless_weight(tmp_path):
    eight = (sparse(4, 8) + 0.0).to(torch.float8_e4m3fn)  # without −0
    # Compared as numbers, stored as the bytes of the eight-bit floats.
    parts = packed("fc", eight.float())
    parts["fc.compressed"] = parts["fc.compressed"].to(torch.float8_e4m3fn)
    conv = sparse(4, 3, 2, 2)
    parts |= packed("conv", conv)
    # As their writer leaves them for more than two dimensions: not one for each row.
    parts["conv.row_offsets"] = torch.zeros(4, 3, 2, dtype=torch.int64)
    save_file(parts, tmp_path / "m.safetensors")
    found = sc.load_sparse(tmp_path / "m.safetensors")
    assert torch.equal(found["fc.weight"].view(torch.uint8), eight.view(torch.uint8))
    assert torch.equal(found["conv.weight"], conv)


def folder_of(path, config):
    """Two files and an index; the parts of one weight lie in both."""
    path.mkdir()
    state = whole()
    moved = ["model.layers.0.q_proj.bitmask", "model.layers.1.q_proj.shape", "ids"]
    files = {
        "a.safetensors": {n: t for n, t in state.items() if n not in moved},
        "b.safetensors": {n: state[n] for n in moved},
    }
    for name, tensors in files.items():
        save_file(tensors, path / name, metadata={"format": "pt"})
    places = {n: name for name, tensors in files.items() for n in tensors}
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (path / INDEX).write_text(json.dumps(index))
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text("{}")


SPARSE = {"format": "sparse-bitmask", "sparsity_structure": "unstructured"}


def test_a_folder_keeps_everything_else_and_loses_the_sparsity_config(tmp_path):
    held = {"quant_method": "compressed-tensors", "sparsity_config": SPARSE, "config_groups": {}}
    folder_of(tmp_path / "m", {"a": 1, "quantization_config": held})
    sc.llm.unpack_bitmasks(tmp_path / "m", tmp_path / "out")
    index = json.loads((tmp_path / "out" / INDEX).read_text())
    found = {}
    for name in set(index["weight_map"].values()):
        tensors = load_file(tmp_path / "out" / name)
        assert {n for n, f in index["weight_map"].items() if f == name} == tensors.keys()
        found |= tensors
    same(found, expected())
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in expected().values())
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {"a": 1}
    assert (tmp_path / "out" / "tokenizer.json").exists()


@pytest.mark.parametrize("holder", ["quantization_config", "compression_config", None])
def test_a_sparsity_config_is_stripped_and_a_quantization_stays(holder, tmp_path):
    groups = {"config_groups": {"group_0": {"weights": {"num_bits": 8}}}}
    config = {"a": "é", "quantization_config": groups}
    held = config | ({holder: groups | {"sparsity_config": SPARSE}} if holder else {})
    (tmp_path / "config.json").write_text(
        json.dumps(held if holder else held | {"sparsity_config": SPARSE}), encoding="utf-8"
    )
    assert sc.llm.strip_sparsity_config(tmp_path)
    found = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert found == config | ({holder: groups} if holder else {})
    assert not sc.llm.strip_sparsity_config(tmp_path)


def test_what_does_not_fit_its_mask_is_refused_and_nothing_written(tmp_path):
    weight = sparse(4, 13)
    good = packed("fc", weight)
    wrong = {
        "shape": [torch.tensor([4, 17]), torch.tensor([-1, 13]), torch.tensor([2**40, 13])],
        "bitmask": [good["fc.bitmask"] | 224, good["fc.bitmask"] & 1, good["fc.bitmask"][:3]],
        "compressed": [good["fc.compressed"][:-1]],
        "row_offsets": [good["fc.row_offsets"] + 1, good["fc.row_offsets"].float()],
    }
    for part, values in wrong.items():
        for value in values:
            save_file(good | {f"fc.{part}": value.contiguous()}, tmp_path / "m.safetensors")
            with pytest.raises(SparseFileError, match="'fc' is no bit-masked weight"):
                sc.load_sparse(tmp_path / "m.safetensors")
            with pytest.raises(SecateursError, match="'fc' is no bit-masked weight"):
                sc.llm.unpack_bitmasks(tmp_path / "m.safetensors", tmp_path / "out.safetensors")
            assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]
    save_file(good | {"fc.weight": weight}, tmp_path / "m.safetensors")
    with pytest.raises(SparseFileError, match="twice"):
        sc.load_sparse(tmp_path / "m.safetensors")
    with pytest.raises(DataError, match="both packed and plain"):
        sc.llm.unpack_bitmasks(tmp_path / "m.safetensors", tmp_path / "out.safetensors")


def test_inputs_are_not_overwritten_and_packed_files_not_pruned(tmp_path):
    save_file(whole(), tmp_path / "m.safetensors")
    with pytest.raises(ArgumentError, match="would be overwritten"):
        sc.llm.unpack_bitmasks(tmp_path / "m.safetensors", tmp_path / "m.safetensors")
    with pytest.raises(DataError, match="unpack_bitmasks"):
        sc.prune_file(tmp_path / "m.safetensors", tmp_path / "out", sparsity=0.5)
