"""pack, unpack and inspect, on checkpoints, sparse files and programs."""

import json

import pytest
import torch

from secateurs.base import progress
from secateurs.cli import main
from secateurs.files import load_sparse, read_sparse
from secateurs_lab.models import build
from secateurs_lab.train import load_model_, save_model


def run(*arguments):
    """A command that succeeds."""
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    assert not stopped.value.code


NOTES = {"arch": "lenet-300-100", "in_channels": "1", "classes": "10", "size": "28"}


@pytest.fixture
def checkpoint(tmp_path):
    torch.manual_seed(0)
    model = build("lenet-300-100", generator=torch.Generator().manual_seed(0))
    for layer in (model.fc1, model.fc2):
        layer.weight.data[torch.rand_like(layer.weight) < 0.98] = 0
        layer.weight.data[: len(layer.weight) // 2] = 0
    return save_model(model, tmp_path / "m.safetensors", notes=NOTES), model


def test_pack_and_unpack_give_the_same_model(checkpoint, tmp_path, capsys):
    path, model = checkpoint
    packed, back = tmp_path / "packed.safetensors", tmp_path / "back.safetensors"
    certificate = tmp_path / "certificate.json"
    certificate.write_text('{"bound": 0.5, "method": "linear"}')
    run("pack", str(path), "-o", str(packed), "--certificate", str(certificate), "-q")
    assert "times smaller" in capsys.readouterr().out
    assert packed.stat().st_size < path.stat().st_size / 20
    assert read_sparse(packed).notes == NOTES
    run("unpack", str(packed), "-o", str(back), "-q")
    loaded = load_model_(build("lenet-300-100"), back)
    assert all(map(torch.equal, loaded.state_dict().values(), model.state_dict().values()))


def test_inspect_shows_certificate_and_sizes(checkpoint, tmp_path, capsys):
    path, _ = checkpoint
    packed, certificate = (
        tmp_path / "packed.safetensors",
        tmp_path / "certificate.json",
    )
    certificate.write_text('{"bound": 0.5, "method": "linear"}')
    run("pack", str(path), "-o", str(packed), "--certificate", str(certificate), "-q")
    capsys.readouterr()
    run("inspect", str(packed))
    shown = capsys.readouterr().out
    assert "fc1.weight" in shown and "times smaller" in shown and "0.5" in shown
    run("inspect", str(packed), "--json")
    told = json.loads(capsys.readouterr().out)
    assert told["certificate"]["bound"] == 0.5
    assert told["sizes"]["bytes"] == packed.stat().st_size


def test_a_program_is_packed(checkpoint, tmp_path):
    _, model = checkpoint
    program, packed = tmp_path / "m.pt2", tmp_path / "packed.safetensors"
    torch.export.save(torch.export.export(model.eval(), (torch.zeros(1, 1, 28, 28),)), program)
    run("pack", str(program), "-o", str(packed), "-q")
    held = load_sparse(packed)
    assert all(torch.equal(held[name], own) for name, own in model.state_dict().items())


def test_what_is_done_is_shown_on_standard_error(checkpoint, tmp_path, capsys, monkeypatch):
    path, _ = checkpoint
    shown = []
    monkeypatch.setattr(progress, "_terminal", lambda: shown.append("asked"))
    for quiet in ([], ["-q"]):
        run("pack", str(path), "-o", str(tmp_path / "p.safetensors"), "--json", *quiet)
        told = capsys.readouterr()
        assert json.loads(told.out)["bytes"] and not told.err
    assert len(shown) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pack", "{path}", "-o", "{path}"], "is an input"),
        (["unpack", "{path}", "-o", "{folder}/x"], "is not a sparse file"),
        (["pack", "{folder}/none.pt2", "-o", "{folder}/x"], "is not a file"),
        (["pack", "{folder}/none.safetensors", "-o", "{folder}/x"], "none.safetensors"),
        (["pack", "{path}", "-o", "{folder}/x", "--values", "bf15"], "bf15"),
    ],
)
def test_mistakes_are_one_message(arguments, message, checkpoint, tmp_path, capsys):
    path, _ = checkpoint
    with pytest.raises(SystemExit) as stopped:
        main([a.format(path=path, folder=tmp_path) for a in arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
