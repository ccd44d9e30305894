"""The page on studies: its Python runs as it stands, its table lists every kind of method."""

import re

from pages import DOCS, blocks
from secateurs_lab.study import METHODS
from secateurs_lab.study.file import parse


def test_fifteen_lines_for_an_own_model(tmp_path, monkeypatch, capsys):
    code = blocks(DOCS / "studies.md")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 17
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "studies.md", "exec"), {"__name__": "__main__"})
    told = capsys.readouterr().out
    lines = [line.split() for line in told.splitlines()]
    assert [words[0] for words in lines] == [
        "dense",
        *["magnitude"] * 2,
        *["dwf"] * 2,
    ]
    assert all(float(words[-2]) > 0.8 for words in lines)  # nobody's first table is rubbish
    assert (tmp_path / "mine.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "mine.study" / "study.db").exists()


def test_an_own_method_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    (code,) = [each for each in blocks(DOCS / "studies.md") if "class Noisy(Method)" in each]
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "studies.md", "exec"), {"__name__": "__main__"})
    told = "[('dense', 'done'), ('noisy', 'done'), ('noisy, cut', 'done')]"
    assert capsys.readouterr().out.strip() == told


def test_the_key_on_the_page_is_one_of_its_study():
    text = (DOCS / "studies.md").read_text()
    named = text.partition("rerun digits.toml ")[2].split()[0]
    study = parse(blocks(DOCS / "studies.md", "toml")[0])
    assert sum(run.key.startswith(named) for run in study.runs()) == 1


def test_ten_lines_for_two_methods():
    text = blocks(DOCS / "studies.md", "toml")[0]
    assert len(text.splitlines()) <= 10
    study = parse(text)
    assert {run.method.kind for run in study.runs()} == {"dense", "prune", "dwf"}
    asked = {run.compression for run in study.runs() if run.method.kind != "dense"}
    assert asked == {5, 20, 50}  # every method is compared at every compression


def test_the_table_lists_every_kind_of_method():
    section = (DOCS / "studies.md").read_text().partition("## The methods")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?`) \|", section, re.M)
    listed = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert listed == set(METHODS), "each kind has a row in docs/studies.md"
