"""The commands on guarantees: what they print, and their errors."""

import json

import pytest
import torch
from torch import nn

from secateurs.cli import main
from secateurs.models import build
from secateurs.theory import plan
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
    code, out, _ = run(
        capsys,
        "plan",
        "--widths",
        "784,1024,1024,1024,10",
        "--alpha",
        "0.1",
        "--epsilon",
        "0.1",
    )
    assert code == 0 and "An error of at most 0.1 is guaranteed with probability 0." in out
    assert (
        "Smallest sufficient hidden width" in out
        and "Theorem 1 as printed" in out
        and "(vacuous)" in out
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--widths", "784,ten", "--alpha", "0.1"),
            "'784,ten' is not a list of whole numbers",
        ),
        (("--widths", "784,10", "--alpha", "0.1"), "depth = 1"),
        (("--widths", "9,9,9,9", "--alpha", "2"), "alpha = 2 is not in (0, 1)"),
        (("--widths", "9,9,9,9"), "exactly one of alpha= and sparsity="),
        (("--alpha", "0.5"), "give either a FILE or --widths"),
        (("m.safetensors", "--widths", "9,9,9,9", "--alpha", "0.5"), "not both"),
        (
            (
                "--widths",
                "9,9,9,9",
                "--alpha",
                "0.5",
                "--arch",
                "vgg-16",
                "--size",
                "3",
            ),
            "--arch, --size: with a FILE only",
        ),
        (
            ("--widths", "9,9,9,9", "--alpha", "0.5", "--scheme", "filters"),
            "Widths with kernel= and input_size= stand for convolutions",
        ),
        (
            (
                "--widths",
                "9,9,9,9",
                "--alpha",
                "0.5",
                "--law",
                "cauchy",
                "--scheme",
                "random",
            ),
            "law = 'cauchy'",
        ),
    ],
)
def test_plan_refuses(capsys, arguments, message):
    code, _, err = run(capsys, "plan", *arguments)
    assert code == 2 and message in err


def test_plan_for_filters_from_widths(capsys):
    options = (
        "--kernel",
        "3",
        "--size",
        "16",
        "--scheme",
        "filters",
        "--alpha",
        "0.5",
        "--lipschitz",
        "2",
        "--json",
    )
    code, out, _ = run(capsys, "plan", "--widths", "3,32,32,10", *options)
    found = json.loads(out)
    expected = plan(
        [3, 32, 32, 10],
        scheme="filters",
        kernel=3,
        input_size=16,
        alpha=0.5,
        lipschitz=2.0,
    )
    assert (
        code == 0
        and found["error"] == expected.error
        and found["law"] == "uniform"
        and found["printed"] is None
    )
    assert found["layers"][1]["removed"] == expected.layers[1].removed == int(1024**0.75)


def test_plan_for_a_file(capsys, tmp_path):
    """The network the notes of the file name, with its weights and biases; others by --arch."""
    torch.manual_seed(0)
    model = build("lenet-300-100", size=8)
    notes = {
        "arch": "lenet-300-100",
        "size": "8",
        "in_channels": "1",
        "classes": "10",
    }
    path = save_model(model, tmp_path / "m.safetensors", notes=notes)
    code, out, _ = run(capsys, "plan", str(path), "--alpha", "0.5", "--scheme", "random")
    expected = plan(model, alpha=0.5, scheme="random")
    assert code == 0 and out == f"{expected}\n"
    assert "fc2" in out and "64-300-100-10" in out and "not necessarily alike" in out
    code, out, _ = run(capsys, "plan", str(path), "--alpha", "0.5", "--law", "uniform", "--json")
    assert code == 0 and json.loads(out)["law"] == "uniform"
    code, _, err = run(capsys, "plan", str(path), "--alpha", "0.5", "--lipschitz", "0.5")
    assert code == 2 and "lipschitz = 0.5 is less than 1" in err


def test_plan_says_what_it_can_do(capsys):
    out = " ".join(run(capsys, "plan", "--help")[1].split())
    assert all(
        word in out
        for word in (
            "filters",
            "--lipschitz",
            "--kernel",
            "--law",
            "--arch",
            "--json",
        )
    )


def test_diagnose_a_file(capsys, tmp_path):
    path = save_model(
        nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 5)), tmp_path / "m.safetensors"
    )
    code, out, _ = run(capsys, "diagnose", str(path))
    assert code == 0 and "0.weight" in out and "magnitude (Thm 1)" in out
    code, out, _ = run(capsys, "diagnose", str(path), "--json")
    assert [row["shape"] for row in json.loads(out)] == [[30, 20], [5, 30]]
    assert run(capsys, "diagnose", str(tmp_path / "absent.safetensors"))[0] == 2


def test_tables(capsys, tmp_path):
    code, out, _ = run(capsys, "random-matrices", "3", "--matrices", "2", "--seed", "1")
    assert code == 0 and "d=512 normal(0,3/d)" in out
    torch.manual_seed(0)
    path = save_model(
        nn.Sequential(*(nn.Linear(9, 9) for _ in range(6))),
        tmp_path / "m.safetensors",
    )
    code, out, _ = run(capsys, "random-matrices", "1", "--file", str(path))
    assert code == 0 and "0.0155" in out and "█" in out
    code, out, _ = run(capsys, "random-matrices", "1", "--root", str(tmp_path), "--epochs", "0")
    assert (
        code == 0
        and "data: digits (covertype was not found in" in out
        and "trained on digits" in out
    )
    assert run(capsys, "random-matrices", "4")[0] == 2
    assert run(capsys, "probabilistic", "4")[0] == 2  # its first name still works
    for table in ("2", "3"):
        code, _, err = run(capsys, "random-matrices", table, "--matrices", "0")
        assert code == 2 and "matrices = 0" in err
