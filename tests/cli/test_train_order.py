"""`secateurs train --method dwf`: forecast, collapse, and a sparse plain checkpoint, without naming
an output.
"""

import pytest
from safetensors.torch import load_file

import secateurs as sc
from secateurs.cli import main


def call(capfd, *arguments):
    capfd.readouterr()
    try:
        main([*arguments])
    except SystemExit as stop:
        code = stop.code
    return code, *capfd.readouterr()


TRAIN = (
    "train",
    "--method",
    "dwf",
    "--depth",
    "3",
    "--arch",
    "lenet-300-100",
    "--data",
    "digits",
    "-q",
)


def test_it_trains_to_a_sparse_checkpoint_named_after_arch_and_method(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capfd, *TRAIN, "--strength", "3e-2", "--length", "30ep")
    assert code == 0, err
    assert "forecast:" in out and "collapsed:" in out and "lenet-300-100-dwf.safetensors" in out
    saved = load_file(tmp_path / "lenet-300-100-dwf.safetensors")
    assert float((saved["fc1.weight"] == 0).double().mean()) > 0.5
    assert set(saved) == {f"fc{i}.{kind}" for i in (1, 2, 3) for kind in ("weight", "bias")}


def test_a_default_output_is_never_written_over(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lenet-300-100-dwf.safetensors").write_bytes(b"mine")
    code, _, err = call(capfd, *TRAIN)
    assert code == 2 and "exists already" in err
    assert (tmp_path / "lenet-300-100-dwf.safetensors").read_bytes() == b"mine"


def test_a_strength_that_cannot_reach_sparsity_is_said_beforehand(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(capfd, *TRAIN, "--strength", "1e-6", "--length", "1ep")
    assert code == 0 and "too small to reach sparsity" in out


def test_the_accuracy_printed_is_that_of_the_network_written(capfd, tmp_path):
    """Here the collapse cuts by rank, far beyond what training has zeroed, and costs nearly
    everything.
    """
    out = tmp_path / "cut.safetensors"
    code, text, err = call(
        capfd, *TRAIN, "--target-sparsity", "0.99", "--length", "2ep", "-o", str(out)
    )
    assert code == 0, err
    data = sc.data.load("digits")
    model = sc.models.build(
        "lenet-300-100",
        in_channels=data.in_channels,
        size=data.size,
        classes=data.classes,
    )
    sc.train.load_model_(model, out)
    assert f"test accuracy {100 * sc.train.evaluate(model, data).accuracy:.2f} %" in text


@pytest.mark.parametrize(
    ("method", "option", "words"),
    [
        (
            "dwf",
            ("--weight-decay", "10"),
            "--weight-decay: --method dwf does not use it (sgd, adam would)",
        ),
        (
            "sgd",
            ("--target-sparsity", "0.9"),
            "--target-sparsity: --method sgd does not use it (dwf would)",
        ),
        (
            "sgd",
            ("--depth", "4", "--strength", "1"),
            "--depth, --strength: --method sgd does not use it",
        ),
        (
            "adam",
            ("--momentum", "0.5"),
            "--momentum: --method adam does not use it (sgd, dwf would)",
        ),
        ("dwf", ("--batch", "0"), "--batch 0: a step needs at least one example"),
        ("dwf", ("--batch", "-4"), "--batch -4: a step needs at least one example"),
        ("dwf", ("--length", ""), "'' is not a step"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(capfd, tmp_path, method, option, words):
    out = tmp_path / "never.safetensors"
    start = (
        "train",
        "--arch",
        "lenet-300-100",
        "--data",
        "digits",
        "-q",
        "--method",
        method,
    )
    code, _, err = call(capfd, *start, *option, "-o", str(out))
    assert code == 2 and words in " ".join(err.replace("│", " ").split()), err
    assert not out.exists()
