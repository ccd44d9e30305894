"""Every script of examples/ runs, short, and keeps what its first line promises."""

import importlib.util
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, folder, monkeypatch, **settings):
    """Load a script as a module and call its `main` where it may write."""
    pytest.importorskip("sklearn")
    monkeypatch.chdir(folder)
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    torch.manual_seed(0)
    return script.main(**settings)


def test_sparse_from_scratch(tmp_path, monkeypatch, capsys):
    result = run("sparse_from_scratch", tmp_path, monkeypatch, epochs=12, sparsity=0.8)
    assert result.compression == pytest.approx(5, rel=0.05)
    assert "5 times fewer weights" in capsys.readouterr().out


def test_sparse_from_trained(tmp_path, monkeypatch, capsys):
    pruned = run("sparse_from_trained", tmp_path, monkeypatch, epochs=4)
    assert pruned.report.total.sparsity == pytest.approx(0.9, abs=1e-4)
    assert "90.0% zeros" in capsys.readouterr().out
    dense_bytes = 4 * sum(mask.numel() for mask in pruned.masks.values())
    assert (tmp_path / "pruned.safetensors").stat().st_size < dense_bytes / 5


def test_certify_change(tmp_path, monkeypatch, capsys):
    proof = run("certify_change", tmp_path, monkeypatch, epochs=3, images=2)
    assert 0 < proof.lower_bound <= proof.bound
    assert "predictions changed" in capsys.readouterr().out


def test_how_much(tmp_path, monkeypatch, capsys):
    best = run("how_much", tmp_path, monkeypatch, epochs=4)
    told = capsys.readouterr().out
    assert 0 <= best < 1 and "magnitude pruning of 1 inner layer(s)" in told
    assert "≤ 0." in told  # the certified bound, asked to stay below 1


def test_compare_methods(tmp_path, monkeypatch, capsys):
    rows = run("compare_methods", tmp_path, monkeypatch, length="1ep", compressions=(5,))
    labels = {row.label for row in rows}
    assert {"dense", "random"} <= labels and len(labels) == 5
    assert all(row.state == "done" for row in rows)
    assert "the whole comparison" in capsys.readouterr().out
    assert "<html" in (tmp_path / "digits.html").read_text()


def test_llama_two_four(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers")
    found = run("llama_two_four", tmp_path, monkeypatch, steps=60)
    assert found["dense"] < 40 and "50% of the weights" in capsys.readouterr().out
    assert found["dense"] < found["Wanda, reconstructed"] < found["magnitude"]
    assert (tmp_path / "llama.safetensors").exists()


def test_bert_in_the_trainer(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    callback = run("bert_in_the_trainer", tmp_path, monkeypatch, steps=20)
    kept = sum(int(mask.sum()) for mask in callback.masks.values())
    total = sum(mask.numel() for mask in callback.masks.values())
    assert kept / total == pytest.approx(0.2, abs=1e-3)
    assert "80.0% zeros in the encoder" in capsys.readouterr().out


def test_cut_resnet(tmp_path, monkeypatch, capsys):
    again = run("cut_resnet", tmp_path, monkeypatch, epochs=1)
    told = capsys.readouterr().out
    assert "38,250 parameters became 9,786" in told and "cut and tuned" in told
    assert again[3].conv1.weight.shape == (8, 8, 3, 3)


def test_cut_detector(tmp_path, monkeypatch, capsys):
    small = run("cut_detector", tmp_path, monkeypatch, epochs=1)
    assert small.compaction.kept == () and small.compaction.rounding < 1e-4
    fine, coarse = small(torch.zeros(2, 1, 8, 8))
    assert fine.shape == (2, 10, 8, 8) and coarse.shape == (2, 10, 4, 4)
    assert "65,028 parameters became" in capsys.readouterr().out


def test_cut_vit(tmp_path, monkeypatch, capsys):
    small = run("cut_vit", tmp_path, monkeypatch, epochs=1)
    told = capsys.readouterr().out
    assert "26,538 parameters became 7,130" in told and "outputs" in told
    assert small.encoder.layers[0].self_attn.num_heads == 2
    assert (tmp_path / "vit.pt2").exists()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_examples_are_short_and_tested(path):
    code = [line for line in path.read_text().splitlines() if line.strip()]
    assert 20 <= len(code) <= 60
    assert f"def test_{path.stem}(" in Path(__file__).read_text()
