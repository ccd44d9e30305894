"""The code of README and CONTRIBUTING runs as it stands, and what they point to exists."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
INDEX = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"^```python\n(.*?)^```", README, flags=re.M | re.S)
RECIPES = re.findall(r"^```python\n(.*?)^```", CONTRIBUTING, flags=re.M | re.S)
SHELL = re.findall(r"^```(?:sh|bash)\n(.*?)^```", README, flags=re.M | re.S)


@pytest.mark.parametrize("code", PYTHON, ids=range(len(PYTHON)))
def test_the_python_blocks_run(code, tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


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


def test_there_is_code_to_run():
    assert any(
        "import secateurs as sc" in code and code.count("\n") <= 25 for code in PYTHON
    )


def test_the_commands_named_exist():
    from secateurs.cli import COMMANDS

    named = re.findall(r"^secateurs (\S+)", "\n".join(SHELL), flags=re.M)
    assert named and all(command in COMMANDS for command in named)
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.M)
    assert (
        {"demo", "test"}
        <= set(re.findall(r"^make (\w+)", "\n".join(SHELL), flags=re.M))
        <= set(targets)
    )


@pytest.mark.parametrize(
    ("text", "folder"),
    [(README, ROOT), (CONTRIBUTING, ROOT), (INDEX, ROOT / "docs")],
    ids=["README", "CONTRIBUTING", "docs"],
)
def test_every_file_they_link_to_exists(text, folder):
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", text)
    assert links and [link for link in links if not (folder / link).exists()] == []


def test_no_pictures_from_the_internet():
    assert not re.search(r"!\[[^]]*\]\(https?:|<img[^>]+https?:", README)
