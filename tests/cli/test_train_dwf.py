"""`secateurs train --method dwf`: forecast, collapse, and a sparse plain checkpoint, without naming an output."""

from safetensors.torch import load_file

from secateurs.cli import main


def call(capfd, *arguments):
    capfd.readouterr()
    try:
        main([*arguments])
    except SystemExit as stop:
        code = stop.code
    return code, *capfd.readouterr()


TRAIN = ("train", "--method", "dwf", "--depth", "3", "--arch", "lenet-300-100", "--data", "digits", "-q")


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
    assert code == 2 and "is there already" in err
    assert (tmp_path / "lenet-300-100-dwf.safetensors").read_bytes() == b"mine"


def test_a_strength_that_cannot_reach_sparsity_is_said_beforehand(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(capfd, *TRAIN, "--strength", "1e-6", "--length", "1ep")
    assert code == 0 and "too small to reach sparsity" in out
