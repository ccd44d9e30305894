"""The page runs as printed, with the real package; zeros stay zero."""

import pytest

from pages import DOCS, run_page


def zeros_hold(model, masks):
    known = dict(model.named_parameters())
    assert masks
    return all(not bool(known[name][~mask].any()) for name, mask in masks.items())


def test_the_page(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    names = run_page(DOCS / "huggingface.md", {"__name__": "huggingface.md"})
    assert "0.800" in capsys.readouterr().out
    assert zeros_hold(names["model"], names["callback"].masks)
    assert (tmp_path / "out/masks.safetensors").exists()
    assert names["pruned"].report.total.sparsity == pytest.approx(0.95, abs=0.02)
    assert names["result"].sparsity > 0.5
    assert (tmp_path / "out/small/config.json").exists()
