"""The page runs as printed, with the real package."""

import pytest

from pages import DOCS, run_page


def test_the_page(tmp_path, monkeypatch, capsys):
    pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)
    names = run_page(DOCS / "lightning.md", {"__name__": "lightning.md"})
    assert "0.90" in capsys.readouterr().out
    masks = names["callback"].masks
    assert names["result"].total > 0
    assert all(name.startswith("net.") for name in masks)
