"""The commands on guarantees: what they print, and their errors."""

import json

import pytest
import torch
from torch import nn

from secateurs.cli import main
from secateurs.train import save_model


def run(capsys, *arguments):
    """Exit code and output of one call in this process."""
    try:
        main(arguments)
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_plan_speaks_plainly(capsys):
    code, out, _ = run(capsys, "plan", "--widths", "784,1024,1024,1024,10", "--alpha", "0.1", "--epsilon", "0.1")
    assert code == 0 and "An error of at most 0.1 is guaranteed with probability 0." in out
    assert "Smallest sufficient hidden width" in out and "Theorem 1 as printed" in out and "(vacuous)" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--widths", "784,ten", "--alpha", "0.1"), "'784,ten' is not a list of whole numbers"),
        (("--widths", "784,10", "--alpha", "0.1"), "depth = 1"),
        (("--widths", "9,9,9,9", "--alpha", "2"), "alpha = 2 is not in (0, 1)"),
        (("--widths", "9,9,9,9"), "exactly one of alpha= and sparsity="),
    ],
)
def test_plan_refuses(capsys, arguments, message):
    code, _, err = run(capsys, "plan", *arguments)
    assert code == 2 and message in err


def test_diagnose_a_file(capsys, tmp_path):
    path = save_model(nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 5)), tmp_path / "m.safetensors")
    code, out, _ = run(capsys, "diagnose", str(path))
    assert code == 0 and "0.weight" in out and "magnitude (Thm 1)" in out
    code, out, _ = run(capsys, "diagnose", str(path), "--json")
    assert [row["shape"] for row in json.loads(out)] == [[30, 20], [5, 30]]
    assert run(capsys, "diagnose", str(tmp_path / "absent.safetensors"))[0] == 2


def test_tables(capsys, tmp_path):
    code, out, _ = run(capsys, "probabilistic", "3", "--matrices", "2", "--seed", "1")
    assert code == 0 and "d=512 normal(0,3/d)" in out
    torch.manual_seed(0)
    path = save_model(nn.Sequential(*(nn.Linear(9, 9) for _ in range(6))), tmp_path / "m.safetensors")
    code, out, _ = run(capsys, "probabilistic", "1", "--file", str(path))
    assert code == 0 and "0.0155" in out and "█" in out
    assert run(capsys, "probabilistic", "4")[0] == 2
