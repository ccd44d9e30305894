"""`secateurs prune` and `inspect` on files: their networks are not known."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file


@pytest.fixture
def model(tmp_path):
    state = {"h.0.weight": torch.randn(8, 8), "h.0.bias": torch.randn(8)}
    save_file(state, tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


def test_prune_then_inspect(run, model, tmp_path):
    out = tmp_path / "o.safetensors"
    arguments = ("prune", model, "-o", out, "--sparsity", "0.75", "--json")
    code, text, errors = run(*arguments, "--score", "magnitude")
    assert (code, errors) == (0, "")
    assert json.loads(text)["total"]["sparsity"] == 0.75
    assert int((load_file(out)["h.0.weight"] != 0).sum()) == 16
    assert json.loads(run("inspect", out, "--json")[1])["total"]["kept"] == 16
    assert run("prune", model, "-o", model, "--sparsity", "0.5")[0] == 2


def test_a_folder_and_float8(run, tmp_path):
    (tmp_path / "f").mkdir()
    state = {
        "w": torch.tensor([[0.0, 1.0]]).to(torch.float8_e4m3fn),
        "n": torch.ones(2, 2).int(),
    }
    save_file(state, tmp_path / "f" / "model.safetensors")
    report = json.loads(run("inspect", tmp_path / "f", "--json")[1])
    assert report["total"]["kept"] == 1 and list(report["tensors"]) == ["w"]
    report = json.loads(run("inspect", tmp_path / "f", "--all", "--json")[1])
    assert report["total"]["kept"] == 5


def test_a_score_that_runs_the_network_is_refused(run, model, tmp_path):
    asked = ("--sparsity", "0.5", "--score", "snip")
    code, out, errors = run("prune", model, "-o", tmp_path / "o", *asked)
    assert (code, out) == (2, "") and "runs the network" in errors


def test_a_sparse_file_is_unpacked_first(run, model, tmp_path):
    packed = tmp_path / "p.safetensors"
    assert run("pack", model, "-o", packed)[0] == 0
    code, _, errors = run("prune", packed, "-o", tmp_path / "o", "--sparsity", "0.5")
    assert code == 2 and "`secateurs unpack` it first" in errors
    assert not (tmp_path / "o").exists()


def test_a_pickle_is_not_opened(run, tmp_path):
    torch.save({}, tmp_path / "m.pt")
    for command in (
        ["inspect"],
        ["prune", "-o", tmp_path / "o", "--sparsity", "0.5"],
    ):
        code, _, errors = run(command[0], tmp_path / "m.pt", *command[1:])
        assert code == 2 and "weights_only=True" in errors
