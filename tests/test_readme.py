"""The code of README and CONTRIBUTING runs as it stands, and what they point to exists."""

import os
import re
import subprocess
import sys

import pytest

from pages import ROOT, blocks, run_page

README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
INDEX = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
RECIPES = blocks(ROOT / "CONTRIBUTING.md")
SHELL = blocks(ROOT / "README.md", "sh")
NUMBER = re.compile(r"\d+\.?\d*")


def test_the_code_runs_and_prints_what_stands_below(tmp_path, monkeypatch, capsys):
    """The words are equal; the numbers may differ a little on another processor."""
    monkeypatch.chdir(tmp_path)
    run_page(ROOT / "README.md")
    printed, (shown,) = capsys.readouterr().out, blocks(ROOT / "README.md", "text")
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", shown)
    ours, theirs = ([float(number) for number in NUMBER.findall(text)] for text in (printed, shown))
    assert ours == pytest.approx(theirs, rel=0.1)


def test_the_recipes_run_in_a_process_of_their_own(tmp_path):
    """They register a score, a pattern and an operator: not in the registries that other tests
    iterate.
    """
    code = "\n\n".join(RECIPES)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len(RECIPES) == 3 and len(done.stdout.splitlines()) == 3


def test_the_code_is_one_short_block():
    """Data, a model of three layers, a loop of five lines, and what is shown; nothing is imported
    that the library does not bring.
    """
    (code,) = blocks(ROOT / "README.md")
    lines = [line for line in code.splitlines() if line.strip()]
    assert sum(not line.startswith(("import", "from")) for line in lines) <= 20
    imported = set(re.findall(r"^(?:import|from) (\w+)", code, flags=re.M))
    assert imported == {"copy", "torch", "secateurs"}


def test_the_figures_name_commands_that_exist():
    from experiments.catalogue import EXPERIMENTS

    commands = re.findall(r"\| `python (-m experiments )?(\S+)[^`]*` \|", README)
    assert len(commands) == 3
    for experiment, what in commands:
        assert what in EXPERIMENTS.names() if experiment else (ROOT / what).exists()


def test_the_commands_named_exist():
    from secateurs.cli.commands import all_commands

    named = re.findall(r"^secateurs (\S+)", "\n".join(SHELL), flags=re.M)
    assert named and all(command in all_commands() for command in named)
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.M)
    assert (
        {"demo", "test"}
        <= set(re.findall(r"^make (\w+)", "\n".join(SHELL), flags=re.M))
        <= set(targets)
    )


def test_the_files_contributing_sends_people_to_exist():
    named = re.findall(r"\| `(src/[^`]+)`|`(src/secateurs/\S+)`", CONTRIBUTING)
    assert len(named) >= 8
    assert [n for pair in named for n in pair if n and not (ROOT / n).exists()] == []


@pytest.mark.parametrize(
    ("text", "folder"),
    [(README, ROOT), (CONTRIBUTING, ROOT), (INDEX, ROOT / "docs")],
    ids=["README", "CONTRIBUTING", "docs"],
)
def test_every_file_they_link_to_exists(text, folder):
    links = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", text)
    assert links and [link for link in links if not (folder / link).exists()] == []


def test_no_pictures_from_the_internet():
    assert not re.search(r"!\[[^]]*\]\(https?:|<img[^>]+https?:", README)


def test_one_version():
    import secateurs

    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {secateurs.__version__}\n" in cited
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## {secateurs.__version__}" in changes
    assert "version = " not in re.sub(
        r"\[tool.*", "", (ROOT / "pyproject.toml").read_text(), flags=re.S
    )
