"""The tool that writes down what the package answers: twice the same, and every change is told."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

TOOL = Path(__file__).resolve().parents[1] / "tools" / "golden.py"


@pytest.fixture(scope="module")
def golden():
    spec = importlib.util.spec_from_file_location("golden", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_equal_answers_and_one_that_changed(golden, tmp_path, capsys):
    file = tmp_path / "answers.json"
    assert golden.main(["write", str(file), "--only", "refusals"]) == 0
    assert golden.main(["compare", str(file), "--only", "refusals"]) == 0
    assert capsys.readouterr().out == "0 differences\n"

    held = json.loads(file.read_text())
    asked = next(key for key, answer in held["refusals"].items() if "UnknownName" in answer)
    held["refusals"][asked] = "!KeyError"
    held["refusals"]["zzz"] = "!ValueError"
    file.write_text(json.dumps(held))
    assert golden.main(["compare", str(file), "--only", "refusals"]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told == [
        f"refusals: {asked}",
        "    was !KeyError",
        "    now !UnknownNameError",
        "refusals: zzz",
        "    was !ValueError",
        "    now (not there)",
        "2 differences",
    ]


def test_leaves_tell_every_bit_and_no_prose(golden):
    def told(value):
        return dict(golden.leaves(value))

    assert told(0.1) == {"": (0.1).hex()} != told(0.1 + 2**-56)
    assert told(torch.zeros(2)) != told(-torch.zeros(2)) != told(torch.zeros(1, 2))
    assert told(torch.zeros(2)) != told(torch.zeros(2, dtype=torch.float64))
    assert told({"a": ["x", "two words", True]}) == {
        "[a].count": 3,
        "[a][0]": "x",
        "[a][2]": True,
    }
    assert told([0.0] * 20) != told([0.0] * 19 + [-0.0])
