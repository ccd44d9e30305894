"""`secateurs generalization`: from a file to a bound, and what it says without data."""

import json

import pytest

import secateurs as sc
from secateurs.cli import main
from secateurs.paths import description_length


@pytest.fixture
def file(tmp_path):
    model = sc.models.build("lenet-300-100", size=8)
    sc.prune_(model, "magnitude", compression=300)
    path = tmp_path / "small.safetensors"
    sc.save_sparse(model, path)
    return path


def test_a_sparse_file_is_bounded(file, capsys):
    given = ["--arch", "lenet-300-100", "--size", "8", "--data", "digits", "--tune", "0", "--json"]
    with pytest.raises(SystemExit) as end:
        main(["generalization", str(file), *given])
    assert end.value.code == 0
    told = json.loads(capsys.readouterr().out)
    model = sc.load_sparse(file, into=sc.models.build("lenet-300-100", size=8))
    data = sc.data.load("digits")
    found = description_length(model, data.train_x, data.train_y)
    assert told["bound"] == found.bound
    assert told["parts"] == dict(found.parts)
    assert told["kept"] == found.kept


def test_without_data_it_says_what_to_add(file, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["generalization", str(file), "--arch", "lenet-300-100", "--size", "8"])
    assert "add --data NAME" in capsys.readouterr().err
