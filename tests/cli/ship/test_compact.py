"""`secateurs compact`: a smaller checkpoint with the same names and the same outputs."""

import json

import pytest
import torch
from safetensors.torch import load_file

import secateurs as sc
from secateurs.cli import main
from secateurs.train import save_model


def run(*arguments):
    with pytest.raises(SystemExit) as done:
        main([str(argument) for argument in arguments])
    return done.value.code


@pytest.fixture
def checkpoint(tmp_path):
    model = sc.models.build("lenet-5")
    weights = [p for p in model.parameters() if p.ndim > 1]
    weights[1].data[:10] = 0
    notes = {"arch": "lenet-5", "in_channels": "1", "classes": "10", "size": "28"}
    return model, save_model(model, tmp_path / "net.safetensors", notes=notes)


def test_it_writes_a_smaller_file_with_the_same_names(checkpoint, tmp_path, capsys):
    model, file = checkpoint
    out = tmp_path / "small.safetensors"
    assert run("compact", file, "--out", out, "--json") == 0
    said = capsys.readouterr()
    account = json.loads(said.out)
    assert account["parameters"][1] < account["parameters"][0] and account["difference"] < 1e-9
    assert "compact: done" in said.err
    held = load_file(out)
    assert set(held) == set(model.state_dict())
    small = sc.compact(model.eval(), torch.zeros(1, 1, 28, 28))
    small.load_state_dict(held)
    x = torch.randn(2, 1, 28, 28)
    assert torch.allclose(model(x), small(x), atol=1e-5)


def test_channels_can_be_pruned_on_the_way(checkpoint, tmp_path, capsys):
    _, file = checkpoint
    assert (
        run(
            "compact",
            file,
            "-o",
            tmp_path / "s.safetensors",
            "--macs",
            0.4,
            "--quiet",
        )
        == 0
    )
    said = capsys.readouterr()
    assert "dead channels removed" in said.out and not said.err


def test_the_input_is_not_overwritten(checkpoint, capsys):
    _, file = checkpoint
    assert run("compact", file, "--out", file) == 2
    assert "would be overwritten" in capsys.readouterr().err
