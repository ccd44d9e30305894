"""Checkpoints pruned where they lie, against `select` on the same tensors in memory."""

import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

import secateurs as sc
from secateurs.base.untrusted import DTYPES, read_header
from secateurs.errors import (
    ArgumentError,
    DataError,
    ParameterError,
    PatternError,
    ScoreError,
    SecateursError,
    UnknownNameError,
)
from secateurs.llm import shards
from secateurs.llm.on_disk import count_stored, nonzeros
from secateurs.llm.shards import INDEX, open_stored


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Pieces of 64 entries or so, so that tensors of a test are read in several."""
    monkeypatch.setattr(shards, "CHUNK", 192)


def tensors(dtype=torch.float32):
    drawn = torch.Generator().manual_seed(0)
    shapes = {
        "embed_tokens.weight": (50, 8),
        "layers.0.q_proj.weight": (16, 24),
        "layers.0.norm.weight": (24,),
        "layers.1.up.weight": (40, 12),
        "layers.1.up.bias": (40,),
        "lm_head.weight": (50, 8),
    }
    return {n: torch.randn(s, generator=drawn).to(dtype) for n, s in shapes.items()}


WEIGHTS = ("layers.0.q_proj.weight", "layers.1.up.weight")


def pruned(folder, state, **options):
    save_file(state, folder / "m.safetensors", metadata={"format": "pt", "a": "b"})
    out = folder / "out.safetensors"
    done = sc.prune_file(folder / "m.safetensors", out, **options)
    return done, load_file(out)


def expected(state, **options):
    masks = sc.select({n: state[n] for n in WEIGHTS}, absolute=True, **options)
    return {n: t * masks[n] if n in masks else t for n, t in state.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "options",
    [
        {"sparsity": 0.5},
        {"compression": 6, "floor": 0.15},
        {"compression": 6, "floor": 0},
        {"density": 0.3, "scope": "layer"},
        {"density": 0.3, "scope": "uniform"},
        {"sparsity": 0.9, "scope": "erk"},
        {"sparsity": 0.5, "scope": "row"},
        {"pattern": "2:4"},
        {"sparsity": 0.5, "scope": "layer", "pattern": "4x4"},
        {"sparsity": 0.6, "pattern": "4x4"},
        {"sparsity": 0.3, "pattern": "filter"},
        {"density": 0.51, "pattern": "filter"},
        {"compression": 30, "pattern": "filter", "floor": 0.1},
        {"compression": 20, "pattern": "channel", "floor": 0.1},
        {"compression": 50, "pattern": "1x2", "floor": 30},
        {"sparsity": 0.7, "pattern": "2:4"},
        {"sparsity": 0.55, "pattern": "2:4", "scope": "erk"},
        {"compression": 6, "pattern": "1:4", "floor": 0.15},
        {"density": 0, "pattern": "4x4"},
        {"sparsity": 0.0, "pattern": "channel"},
        {"density": 0},
        {"sparsity": 0.0},
    ],
    ids=str,
)
def test_equals_select_in_memory(tmp_path, dtype, options):
    state = tensors(dtype)
    # 16 bits have many ties already; these have only ties.
    state["layers.1.up.weight"][:20] = 0.25
    done, found = pruned(tmp_path, state, **options)
    wanted = expected(state, **options)
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name
    kept = sum(int((wanted[n] != 0).sum()) for n in WEIGHTS)
    assert done.report.total.kept == kept
    assert set(done.left) == set(state) - set(WEIGHTS)


def test_everything_but_the_zeros_is_the_same_bytes(tmp_path):
    state = tensors() | {"count": torch.tensor(3), "flags": torch.ones(3, 3) > 0}
    pruned(tmp_path, state, sparsity=0.5)
    before, after = ((tmp_path / n).read_bytes() for n in ("m.safetensors", "out.safetensors"))
    body = read_header(tmp_path / "m.safetensors", DataError).body
    assert before[:body] == after[:body] and len(before) == len(after)
    changed = [i for i in range(body, len(before)) if before[i] != after[i]]
    assert changed and not any(after[i] for i in changed)


def test_globs_choose_and_leave_out(tmp_path):
    done, found = pruned(tmp_path, tensors(), density=0, where=["*", "!*.1.*", "!embed*"])
    zero = {n for n, t in found.items() if not t.any()}
    assert zero == {
        "layers.0.q_proj.weight",
        "layers.0.norm.weight",
        "lm_head.weight",
    }
    assert {t.name for t in done.report.tensors} == zero


@pytest.mark.parametrize(
    "name", ["conv.weight_v", "conv.parametrizations.weight.original1", "weight_g"]
)
def test_parts_of_which_a_weight_is_computed_are_left_as_they_are(tmp_path, name):
    state = {**tensors(), name: torch.randn(6, 4)}
    for where in (None, ["*"]):
        _, found = pruned(tmp_path, state, sparsity=0.9, where=where)
        assert torch.equal(found[name], state[name])
    with pytest.raises(ParameterError, match="cannot be pruned: a weight is computed of it"):
        pruned(tmp_path, state, sparsity=0.9, where=[name])


def test_random_is_drawn_by_the_seed_alone(tmp_path):
    results = []
    for seed in (1, 1, 2):
        _, found = pruned(tmp_path, tensors(), sparsity=0.5, score="random", seed=seed)
        results.append(torch.cat([found[n].flatten() for n in WEIGHTS]))
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])
    assert int((results[0] == 0).sum()) == results[0].numel() // 2


def folder_of(root, state):
    """A sharded folder as Hugging Face writes it."""
    source = root / "model"
    source.mkdir()
    names, places = list(state), {}
    for number, part in enumerate((names[:3], names[3:]), 1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({n: state[n] for n in part}, source / file, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
    (source / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (source / "config.json").write_text("{}")
    (source / "pytorch_model.bin").write_bytes(b"\x80")
    return source


def test_a_folder_of_shards_is_pruned_as_one_model(tmp_path):
    state = tensors()
    source = folder_of(tmp_path, state)
    done = sc.prune_file(source, tmp_path / "out", sparsity=0.7)
    found = {}
    for file in (tmp_path / "out").glob("*.safetensors"):
        found |= load_file(file)
    for name, tensor in expected(state, sparsity=0.7).items():
        assert torch.equal(found[name], tensor), name
    assert {p.name for p in (tmp_path / "out").iterdir()} >= {INDEX, "config.json"}
    assert not (tmp_path / "out" / "pytorch_model.bin").exists()
    assert done.report.total.kept == count_stored(open_stored(tmp_path / "out")).total.kept - 800
    with pytest.raises(ArgumentError, match="name a new folder"):
        sc.prune_file(source, tmp_path / "out", sparsity=0.7)


def test_folders_that_do_not_fit_their_index(tmp_path):
    source = folder_of(tmp_path, tensors())
    index = json.loads((source / INDEX).read_text())
    for change, text in (
        ({"lm_head.weight": "../x.safetensors"}, "not in"),
        (
            {"lm_head.weight": "model-00001-of-00002.safetensors"},
            "disagree on where 'lm_head",
        ),
        ({"more": "model-00001-of-00002.safetensors"}, "disagree on where 'more'"),
    ):
        changed = {"weight_map": index["weight_map"] | change}
        (source / INDEX).write_text(json.dumps(changed))
        with pytest.raises(DataError, match=text):
            open_stored(source)
    (source / INDEX).write_text("[]")
    with pytest.raises(DataError, match="no weight_map"):
        open_stored(source)


@pytest.mark.parametrize("name", ["m.pt", "pytorch_model.bin", "m.CKPT"])
def test_pickles_are_refused_with_the_lines_that_convert(tmp_path, name):
    path = tmp_path / name
    torch.save({"w": torch.ones(2, 2)}, path)
    with pytest.raises(DataError, match="weights_only=True") as caught:
        sc.prune_file(path, tmp_path / "o.safetensors", sparsity=0.5)
    lines = str(caught.value).split("\n", 2)[2].replace(repr(name), repr(str(path)))
    lines = lines.replace("model.safetensors", str(tmp_path / "model.safetensors"))
    exec("\n".join(line.strip() for line in lines.splitlines()), {})
    assert load_file(tmp_path / "model.safetensors")["w"].sum() == 4
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(DataError, match="is a pickle"):
        open_stored(tmp_path)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({}, ArgumentError, "how much to keep is missing"),
        ({"sparsity": 0.5, "score": "wanda"}, ArgumentError, "runs the network"),
        (
            {"sparsity": 0.5, "score": "magnitud"},
            Exception,
            "Did you mean 'magnitude'",
        ),
        ({"sparsity": 0.5, "where": ["q_proj"]}, ParameterError, "q_proj"),
        ({"sparsity": 0.5, "where": ["count"]}, ParameterError, "I64"),
        ({"sparsity": 0.5, "pattern": "7x7"}, PatternError, "does not fit 2 of 2"),
        (
            {"sparsity": 0.5, "pattern": "7x7", "scope": "layer"},
            PatternError,
            "does not fit 2 of 2",
        ),
        (
            {"sparsity": 0.5, "scope": "spectral"},
            ArgumentError,
            "in pieces: use global",
        ),
        (
            {"sparsity": 0.5, "scope": "globl"},
            UnknownNameError,
            "Did you mean 'global'",
        ),
        ({"density": 0.6, "pattern": "2:4"}, ArgumentError, "leave only 432"),
        ({"density": 1e-5, "floor": 3}, ArgumentError, "cannot keep the floor of 6"),
    ],
)
def test_errors_leave_nothing_behind(tmp_path, options, error, text):
    with pytest.raises(error, match=text):
        pruned(tmp_path, tensors() | {"count": torch.ones(2, 2).long()}, **options)
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def test_a_misspelt_keyword_is_refused_before_a_file_is_read(tmp_path):
    told = "no keyword of prune_file 'spersity'. Did you mean 'sparsity'"
    with pytest.raises(UnknownNameError, match=told):
        sc.prune_file(tmp_path / "absent", tmp_path / "out", spersity=0.5)


def test_what_is_not_finite_is_refused_and_nothing_written(tmp_path):
    state = tensors()
    state[WEIGHTS[1]][3, 3] = float("nan")
    for options in ({"sparsity": 0.5}, {"sparsity": 0.5, "scope": "row"}):
        with pytest.raises(ScoreError, match=r"'layers.1.up.weight' holds NaN"):
            pruned(tmp_path, state, **options)
        assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def written(path, dtype, shape, blob):
    field = {"w": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(blob)]}}
    text = json.dumps(field).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + blob)
    return path


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_dtype_is_counted(tmp_path, dtype):
    """Eight entries, of which the second, and where there is one a −0, are zero."""
    bits = DTYPES[dtype].bits
    codes = [3, 0, 5, 7, 2, 1, 9, 6]
    signed = DTYPES[dtype].floating and dtype != "F8_E8M0" and "FNUZ" not in dtype
    codes[4] = 1 << (bits - 1) if signed else codes[4]
    word = sum((code % (1 << bits)) << (bits * place) for place, code in enumerate(codes))
    path = written(tmp_path / "m.safetensors", dtype, [2, 4], word.to_bytes(bits, "little"))
    report = count_stored(open_stored(path), all=True)
    zeros = 2 if signed else 0 if dtype == "F8_E8M0" else 1
    assert (report.total.total, report.total.kept) == (8, 8 - zeros)


@pytest.mark.parametrize(
    "dtype",
    [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.int8, torch.bool],
)
def test_counts_what_torch_writes(tmp_path, dtype):
    values = torch.tensor([[0.0, -0.0, 1.0, -2.0], [0.5, 0.0, 448.0, 3.0]])
    save_file({"w": values.to(dtype)}, tmp_path / "m.safetensors")
    stored = open_stored(tmp_path / "m.safetensors")
    ((shard, entry),) = stored.entries()
    assert nonzeros(shard, entry) == int((values.to(dtype).float() != 0).sum())


@pytest.mark.parametrize(
    ("dtype", "shape", "blob", "text"),
    [
        ("F99", [1], b"0000", "known are F64"),
        ("F32", [2], b"0000", r"claims F32\[2\]"),
        ("F32", [-1], b"0000", "not a list of sizes"),
        ("F4", [3], b"00", r"claims F4\[3\]"),
    ],
)
def test_damaged_headers_are_refused(tmp_path, dtype, shape, blob, text):
    with pytest.raises(DataError, match=text):
        open_stored(written(tmp_path / "m.safetensors", dtype, shape, blob))


def test_a_file_that_is_cut_off_is_refused(tmp_path):
    save_file(tensors(), tmp_path / "m.safetensors")
    blob = (tmp_path / "m.safetensors").read_bytes()
    for cut in (0, 5, 40, len(blob) - 1):
        (tmp_path / "m.safetensors").write_bytes(blob[:cut])
        with pytest.raises(DataError):
            open_stored(tmp_path / "m.safetensors")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("options", [{}, {"pattern": "4x4"}, {"pattern": "2:4"}], ids=str)
def test_masks_are_those_of_save_masks(tmp_path, dtype, options):
    """Byte for byte, with tensors whose entries do not fill their last byte."""
    state = tensors(dtype)
    if not options:
        state["layers.0.q_proj.weight"] = state["layers.0.q_proj.weight"][:13, :21].clone()
    done, found = pruned(tmp_path, state, sparsity=0.6, masks_out=tmp_path / "m.bits", **options)
    masks = sc.select({n: state[n] for n in WEIGHTS}, absolute=True, sparsity=0.6, **options)
    # A file holds its tensors in an order of its own.
    order = [tensor.name for tensor in done.report.tensors]
    sc.save_masks({name: masks[name] for name in order}, tmp_path / "own.bits")
    assert (tmp_path / "m.bits").read_bytes() == (tmp_path / "own.bits").read_bytes()
    assert all(
        torch.equal(mask, masks[n]) for n, mask in sc.load_masks(tmp_path / "m.bits").items()
    )
    assert torch.equal(found[WEIGHTS[1]], state[WEIGHTS[1]] * masks[WEIGHTS[1]])


@pytest.mark.parametrize("name", ["m.safetensors", "out.safetensors", "folder", "no/where.bits"])
def test_masks_have_a_file_of_their_own(tmp_path, name):
    (tmp_path / "folder").mkdir()
    state = tensors()
    with pytest.raises(SecateursError, match="file"):
        pruned(tmp_path, state, sparsity=0.5, masks_out=tmp_path / name)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "m.safetensors"]


def test_an_error_leaves_no_masks_behind(tmp_path):
    state = tensors()
    state[WEIGHTS[1]][3, 3] = float("nan")
    with pytest.raises(ScoreError):
        pruned(tmp_path, state, pattern="2:4", masks_out=tmp_path / "m.bits")
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]
