"""The pages on structure say what is so: the order of imports, every room, files that exist."""

import re
import subprocess
import sys
import tomllib

import pytest

from pages import DOCS, ROOT, blocks

sys.path.append(str(ROOT / "tools"))
import reach

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


def test_a_call_followed_file_by_file_has_as_many_as_its_heading_says():
    parts = CONTRIBUTING.partition("## One call")[2].partition("## How code")[0].split("\n### ")[1:]
    assert len(parts) == 5
    for part in parts:
        rows = re.findall(r"^\| (`.*?`) \|", part, flags=re.M)
        named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
        assert len(set(named)) == len(named) == int(re.search(r": (\d+) files\n", part)[1]), part


CALLS = re.findall(
    r"^\| `([\w.]+)` \| (.*?) \| (\d+) \| ([\d,]+) \|$",
    DESIGN.partition("### Which rooms")[2].partition("\n## ")[0],
    flags=re.M,
)


@pytest.mark.parametrize(("call", "rooms", "files", "lines"), CALLS, ids=[c[0] for c in CALLS])
def test_a_call_can_enter_the_rooms_of_its_row(call, rooms, files, lines):
    # Rules are found by a registry: a call runs few of them.
    found = [m for m in reach.reach(call) if ".lowering" not in m and ".rules" not in m]
    entered = {reach.room(module) for module in found} - {"base", "errors", "version"}
    assert entered == set(re.findall(r"`(\w+)`", rooms))
    # Round numbers, which need no care at every change.
    assert len(found) == pytest.approx(int(files), rel=0.1)
    assert sum(map(reach.lines, found)) == pytest.approx(int(lines.replace(",", "")), rel=0.1)


def test_the_calls_that_are_counted():
    assert {"hold", "prune_", "certify", "accelerate", "theory.plan"} <= {c[0] for c in CALLS}


@pytest.mark.parametrize(
    ("call", "apart"),
    [
        ("certify", ("proof.statistical", "proof.kept", "proof.training", "base.prunable")),
        ("compact", ("base.prunable", "base.sizes", "channels.families")),
        ("hold", ("base.prunable",)),
        ("save_sparse", ("base.prunable", "base.sharding")),
    ],
)
def test_what_a_call_does_not_lead_to(call, apart):
    """Questions of their own: whoever changes the call need not know their answers."""
    modules = {f"secateurs.{module}" for module in apart}
    assert modules <= reach.FILES.keys() and not modules & set(reach.reach(call))


def test_what_a_call_leads_to_holds_what_it_loads():
    names = "prune_", "compact"
    code = "import sys" + "".join(
        f"\nfrom secateurs import {name}\nprint(*sys.modules)" for name in names
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    # What opens the rooms is loaded by all of them.
    reached = {"secateurs.base.lazy", "secateurs.version"}
    for name, loaded in zip(names, told.splitlines(), strict=True):
        reached |= set(reach.reach(name))
        modules = set(loaded.split()) & reach.FILES.keys()
        ours = {module for module in modules if reach.FILES[module].name != "__init__.py"}
        assert ours <= reached, name
        assert len(ours) > 20
