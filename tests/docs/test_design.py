"""The pages on structure say what is so: the order of imports, every room, files that exist."""

import ast
import re
import tomllib
from functools import cache

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


def test_a_call_followed_file_by_file_has_as_many_as_its_heading_says():
    parts = CONTRIBUTING.partition("## One call")[2].partition("## How code")[0].split("\n### ")[1:]
    assert len(parts) == 5
    for part in parts:
        rows = re.findall(r"^\| (`.*?`) \|", part, flags=re.M)
        named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
        assert len(set(named)) == len(named) == int(re.search(r": (\d+) files\n", part)[1]), part


@cache
def imports():
    """What each module of the library imports from it, also inside functions; a name that a face
    hands on counts as the module that defines it.
    """
    root = ROOT / "src"
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in root.rglob("*.py")
    }
    found, faces = {}, {}
    for module, path in files.items():
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        typing = {
            inner
            for node in nodes
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for inner in ast.walk(node)
        }
        taken = {
            (node.module, alias.name)
            for node in nodes
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
            if path.name == "__init__.py" or node not in typing
        }
        if path.name == "__init__.py":
            faces |= {(module, name): source for source, name in taken}
        else:
            found[module] = taken

    def home(source, name):
        if f"{source}.{name}" in found:
            return f"{source}.{name}"
        return home(faces[source, name], name) if (source, name) in faces else source

    edges = {
        module: {home(*each) for each in taken} & found.keys() for module, taken in found.items()
    }
    return edges, {module: files[module] for module in found}, home


def reach(call):
    """The modules that a call can lead to; rules that only a face imports are not among them."""
    edges, files, home = imports()
    room, _, name = call.rpartition(".")
    tops = [home(f"secateurs.{room}" if room else "secateurs", name)]
    if tops[0] not in files:  # offered by its room alone
        tops = [found for m in ROOMS if (found := home(f"secateurs.{m}", name)) in files]
    seen = set()
    while tops:
        module = tops.pop()
        if module not in seen:
            seen.add(module)
            tops += edges[module]
    return {module: files[module] for module in seen}


ROOMS = [path.parent.name for path in sorted((ROOT / "src/secateurs").glob("*/__init__.py"))]
CALLS = re.findall(
    r"^\| `([\w.]+)` \| (.*?) \| (\d+) \| ([\d,]+) \|$",
    DESIGN.partition("### Which rooms")[2].partition("\n## ")[0],
    flags=re.M,
)


@pytest.mark.parametrize(("call", "rooms", "files", "lines"), CALLS, ids=[c[0] for c in CALLS])
def test_a_call_can_enter_the_rooms_of_its_row(call, rooms, files, lines):
    found = reach(call)
    entered = {m.split(".")[1] for m in found} - {"base", "errors", "version"}
    assert entered == set(re.findall(r"`(\w+)`", rooms))
    # Round numbers, which need no care at every change.
    assert len(found) == pytest.approx(int(files), rel=0.1)
    total = sum(path.read_text(encoding="utf-8").count("\n") for path in found.values())
    assert total == pytest.approx(int(lines.replace(",", "")), rel=0.1)


def test_the_calls_that_are_counted():
    assert {"hold", "prune_", "certify", "accelerate", "theory.plan"} <= {c[0] for c in CALLS}
