"""pack, unpack, export, measure and inspect, on checkpoints, sparse files and programs."""

import json

import pytest
import torch

from secateurs.cli import main
from secateurs.errors import ShipError
from secateurs.models import build
from secateurs.ship import read_sparse
from secateurs.train import load_model_, save_model


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


def test_a_sparse_file_exports_and_measures(checkpoint, tmp_path, capsys):
    path, model = checkpoint
    packed, program = tmp_path / "packed.safetensors", tmp_path / "m.pt2"
    table, picture = tmp_path / "t.csv", tmp_path / "t.svg"
    run("pack", str(path), "-o", str(packed), "-q")
    run("export", str(packed), "-o", str(program), "-q")
    x = torch.randn(4, 1, 28, 28)
    answer = torch.export.load(program).module()(x)
    torch.testing.assert_close(answer, model.eval()(x), rtol=1e-4, atol=1e-5)
    capsys.readouterr()
    measured = [
        "measure",
        str(packed),
        "--seconds",
        "0.05",
        "--batch",
        "2",
        "--no-fast",
        "-q",
    ]
    run(*measured, "--csv", str(table), "--svg", str(picture), "--json")
    forms = json.loads(capsys.readouterr().out)["forms"]
    assert [form["name"] for form in forms] == ["as it is", "compact"]
    assert forms[1]["parameters"] < forms[0]["parameters"]
    assert forms[1]["difference"] < 1e-5
    assert table.read_text().startswith("name,") and picture.read_text().startswith("<svg")
    run(
        "measure",
        str(program),
        "--seconds",
        "0.05",
        "--batch",
        "2",
        "--no-fast",
        "--json",
        "-q",
    )
    assert json.loads(capsys.readouterr().out)["forms"][0]["name"] == "as it is"


def test_progress_goes_to_standard_error(checkpoint, tmp_path, capsys):
    path, _ = checkpoint
    run("export", str(path), "-o", str(tmp_path / "m.pt2"), "--as-it-is")
    assert "running it by torch.export" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pack", "{path}", "-o", "{path}"], "is an input"),
        (["unpack", "{path}", "-o", "{folder}/x"], "is not a sparse file"),
        (["export", "{path}", "-o", "{folder}/x.onxx"], ".onxx"),
        (["export", "{folder}/none.pt2", "-o", "{folder}/x.pt2"], "is not a file"),
        (["measure", "{folder}/none.safetensors"], "none.safetensors"),
        (["pack", "{path}", "-o", "{folder}/x", "--values", "bf15"], "bf15"),
    ],
)
def test_mistakes_are_one_message(arguments, message, checkpoint, tmp_path, capsys):
    path, _ = checkpoint
    with pytest.raises(SystemExit) as stopped:
        main([a.format(path=path, folder=tmp_path) for a in arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_what_cannot_be_compacted_is_exported_as_it_is(checkpoint, tmp_path, capsys, monkeypatch):
    def refused(*_, **__):
        raise ShipError("its code counts on sizes")

    monkeypatch.setattr("secateurs.channels.compact", refused)
    path, model = checkpoint
    program = tmp_path / "m.pt2"
    run("export", str(path), "-o", str(program), "-q")
    shown = capsys.readouterr()
    assert "not compacted: its code counts on sizes" in shown.err
    answer = torch.export.load(program).module()(torch.ones(2, 1, 28, 28))
    torch.testing.assert_close(answer, model.eval()(torch.ones(2, 1, 28, 28)))
