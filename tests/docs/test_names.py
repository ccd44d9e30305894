"""Every dotted name on a page is there: rooms and modules by their own name, wherever they lie."""

import ast
import pkgutil
import re
from functools import cache

import pytest

import experiments
import secateurs
import secateurs_lab
from pages import ROOT, blocks, pages

PAGES = [
    *pages(),
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "benchmarks" / "results").glob("*.md")),
]
DOTTED = re.compile(r"(?<!`)`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\([^`]*\))?`(?!`)")
FILES = re.compile(r"\.(py|md|db|csv|json|toml|html|svg|cpp|c|onnx|safetensors|pt|h|yml)$")


@cache
def modules():
    """The modules of the packages by the last part of their name."""
    found = {"sc": ["secateurs"], "lab": ["secateurs_lab"]}
    for package in (secateurs, secateurs_lab, experiments):
        name = package.__name__
        found[name] = [name]
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            found.setdefault(module.name.rpartition(".")[2], []).append(module.name)
    return found


@cache
def variables():
    """What the code of the pages calls its values: `fast.report` is about one of them."""
    found = {"module", "scorer", "store"}  # in the text alone
    for page in pages():
        for block in blocks(page):
            if not block.startswith(">>>"):
                nodes = list(ast.walk(ast.parse(block)))
                found |= {
                    node.id
                    for node in nodes
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                }
                found |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return found


def is_there(name):
    first, _, rest = name.partition(".")
    for module in modules()[first]:
        try:
            pkgutil.resolve_name(f"{module}.{rest}")
            return True
        except (AttributeError, ModuleNotFoundError):
            continue
    return False


def ours(page):
    """The dotted names of a page that begin with a room or module of the package."""
    rooms = modules().keys() - variables()
    found = set(DOTTED.findall(page.read_text(encoding="utf-8")))
    return sorted(n for n in found if n.partition(".")[0] in rooms and not FILES.search(n))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_dotted_name_of_a_page_exists(page):
    assert [name for name in ours(page) if not is_there(name)] == []


def test_a_name_that_is_gone_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "`paths.norms.path_norm(model)`, `optim.gaussian`, `docs/x.md`, `paths.py`, `torch.x`"
    )
    assert ours(page) == ["optim.gaussian", "paths.norms.path_norm"]
    assert not is_there("optim.gaussian") and is_there("secateurs.prune_")
