"""The rules of the house, checked on the source: import order, forbidden calls, public names."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "secateurs"
FILES = sorted(SOURCE.rglob("*.py"))
ORDER = (
    *(
        "version",
        "lazy",
        "errors",
        "safefile",
        "registry",
        "foreign",
        "printing",
        "native",
        "random",
        "bits",
        "sharding",
        "parametrized",
        "parameters",
        "hashing",
        "onnx_session",
        "singular_values",
        "step",
        "stateless",
        "sizes",
    ),
    *("masks", "graph", "certificates", "paths", "theory", "scores", "channels"),
    *(
        "optim",
        "prune",
        "ship",
        "diagnosis",
        "compat",
        "adapters",
        "models",
        "data",
        "train",
        "study",
        "zoo",
        "report",
        "papers",
        "demo",
        "cli",
        "__main__",
    ),
)
FORBIDDEN_MODULES = {
    "pickle",
    "cloudpickle",
    "dill",
    "shelve",
    "marshal",
    "torchvision",
}
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
        # Only public names are imported by name: what a room's own source states, and the table of
        # commands.
        allowed = part(path) in ("lazy", "cli")
        assert name != "import_module" or allowed, f"{path.name}:{node.lineno}"


MODULES = {
    ".".join(("secateurs", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in FILES
}


def imported(name: str) -> set[str]:
    """The modules of this package that one module imports, wherever in the file it does so."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {full if full in MODULES else node.module for full in inner}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {other for other in found if other in MODULES and other != name}


def test_no_circle_of_imports_anywhere():
    """Neither between packages nor inside one, nor hidden in a function or behind TYPE_CHECKING.

    Modules without an import left are taken away until none is left; what cannot be taken away lies
    on a circle, or above one.
    """
    left = {name: imported(name) for name in MODULES}
    while free := {name for name, others in left.items() if not others}:
        left = {name: others - free for name, others in left.items() if name not in free}
    assert not left, f"imports run in a circle among {sorted(left)}"


def test_nothing_imports_the_package_itself():
    """It states every public name, so whoever imported it would lie on a circle with all rooms."""
    assert not [name for name in MODULES if "secateurs" in imported(name)]


# Opened by their users: the program itself, and comparisons to copy from. The functions of commands
# are imported by name, and the tests of the command line see to those.
OPENED_BY_NAME = {"secateurs.__main__", "secateurs_lab.study.presets"}


def test_every_file_is_imported_by_another():
    """A score, a model or an experiment in a file that nothing imports registers nothing, and the
    tests of its registry would be green without it.
    """
    used = set().union(*map(imported, MODULES))
    alone = [
        name
        for name, path in MODULES.items()
        if path.name != "__init__.py"
        and name not in used | OPENED_BY_NAME
        and not name.startswith("secateurs.cli.")
    ]
    assert not alone, f"import them where their neighbours are imported: {', '.join(alone)}"


TESTS = Path(__file__).parent
# Tests of no single module: of the documentation, of promises that every module keeps, and of
# random networks that go through all of them.
ACROSS = {
    "test_docs.py",
    "test_examples.py",
    "test_foreign_models.py",
    "test_golden.py",
    "test_house.py",
    "test_k_pools.py",
    "test_mistakes.py",
    "test_readme.py",
    "test_typed.py",
    "adapters/test_resume.py",
    "attack/test_attack.py",
    "attack/test_stores.py",
    "gpu/test_cuda.py",
    "gpu/test_launches.py",
    "gpu/test_studies.py",
    "strange/test_strange.py",
}


@pytest.mark.parametrize(
    "test",
    sorted(path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")),
)
def test_a_test_lies_where_its_module_lies(test):
    """`tests/A/test_X.py` tests `src/secateurs/A/X.py`, or the package of that name.

    Where a module has several files of tests, they lie in a folder of its name:
    `tests/A/X/test_*.py`. What stands in `tests/docs` runs the page of its name.
    """
    path = Path(test)
    name = path.stem.removeprefix("test_")
    if test in ACROSS:
        return
    if path.parts[0] == "docs":
        assert (TESTS.parent / "docs" / f"{name}.md").exists()
        return
    module = SOURCE / path.parent / name
    whole = (SOURCE / path.parent).with_suffix(".py")
    assert module.is_dir() or module.with_suffix(".py").exists() or whole.exists(), (
        f"there is no module secateurs/{path.parent / name} that {test} could test, nor one of the "
        "name of its folder: name it after the module it tests, or add it to ACROSS"
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
