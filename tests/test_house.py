"""The rules of the house, checked on the source: import order, forbidden calls, public names."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "secateurs"
FILES = sorted(SOURCE.rglob("*.py"))
ORDER = (
    *("errors", "registry", "printing", "native", "random", "where", "parameters", "step"),
    *("graph", "paths", "theory", "scores", "masks"),
    *(
        "optim",
        "ship",
        "prune",
        "diagnosis",
        "compat",
        "models",
        "data",
        "train",
        "study",
        "report",
        "demo",
        "cli",
        "__main__",
    ),
)
FORBIDDEN_MODULES = {"pickle", "cloudpickle", "dill", "shelve", "marshal", "torchvision"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}


def part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(tree: ast.AST):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module == "secateurs":
                yield from (f"secateurs.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_downwards_only(path):
    if part(path) == "__init__":
        return
    for module in imports(ast.parse(path.read_text())):
        if module.startswith("secateurs."):
            target = module.split(".")[1]
            assert ORDER.index(target) <= ORDER.index(part(path)), (
                f"{path.name} imports {module}, which lies above it"
            )


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_pickle_no_eval_no_imports_by_name(path):
    tree = ast.parse(path.read_text())
    roots = {module.split(".")[0] for module in imports(tree)}
    assert not roots & FORBIDDEN_MODULES
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if isinstance(node.func, ast.Name):
            assert name not in FORBIDDEN_CALLS, f"{path.name}:{node.lineno} calls {name}"
        if ast.unparse(node.func) in {"torch.load", "torch.save"}:
            raise AssertionError(f"{path.name}:{node.lineno}: files are safetensors, never pickles")
        # Only the table of public names in __init__ may import by name: it holds literals of this
        # package.
        assert name != "import_module" or part(path) in {"__init__", "cli"}, (
            f"{path.name}:{node.lineno}"
        )


def test_no_assert_in_the_source():
    """Asserts vanish under -O: what the user can get wrong raises a typed error instead."""
    guilty = [
        p.name
        for p in FILES
        for node in ast.walk(ast.parse(p.read_text()))
        if isinstance(node, ast.Assert)
    ]
    assert not guilty


def test_every_public_name_resolves():
    import secateurs

    for name in secateurs.__all__:
        assert getattr(secateurs, name) is not None, name


def test_import_does_not_load_torch():
    code = "import sys, secateurs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=SOURCE.parent).returncode == 0
