"""The pages on structure say what is so: the order of imports, every room, files that exist."""

import re
import tomllib

import pytest

from pages import DOCS, ROOT, blocks

DESIGN = (DOCS / "design.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
# A path with a folder, or the name of a Python file; it may begin at any folder of the repository.
NAMED = re.compile(r"`((?:\w+/)+[\w.]*|\w+\.py)`")


def test_the_layers_are_those_of_the_contracts():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages, rooms = settings["tool"]["importlinter"]["contracts"]
    between, within = blocks(DOCS / "design.md", "text")
    assert [line.split()[0] for line in between.splitlines()] == packages["layers"]
    assert within.splitlines() == rooms["layers"]


def test_every_room_has_a_row():
    named = re.findall(
        r"^\| `(\w+)` \| ", DESIGN.partition("| room |")[2].partition("###")[0], re.M
    )
    rooms = {path.parent.name for path in (ROOT / "src" / "secateurs").glob("*/__init__.py")}
    assert len(named) == len(set(named)) and set(named) == rooms


@pytest.mark.parametrize("text", [DESIGN, CONTRIBUTING], ids=["design", "CONTRIBUTING"])
def test_the_files_that_are_named_exist(text):
    there = set()
    for top in ("src", "lab", "experiments", "tests", "docs", "benchmarks", "tools"):
        for path in (ROOT / top, *(ROOT / top).rglob("*")):
            parts = path.relative_to(ROOT).parts
            there |= {"/".join(parts[at:]) for at in range(len(parts))}
    named = NAMED.findall(re.sub(r"```.*?```", "", text, flags=re.S))
    gone = [name for name in named if name.rstrip("/") not in there]
    assert [name for name in gone if "A/" not in name] == []  # A stands for any folder
