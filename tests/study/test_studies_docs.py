"""The page on studies: its Python runs as it stands."""

from pathlib import Path


def test_fifteen_lines_for_an_own_model(tmp_path, monkeypatch, capsys):
    page = Path(__file__).parents[2].joinpath("docs/studies.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 17
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "studies.md", "exec"), {"__name__": "__main__"})
    told = capsys.readouterr().out
    assert told.startswith("[('dense', 0.") and "'magnitude'" in told and "dwf" in told
    assert (tmp_path / "mine.study" / "study.db").exists()
