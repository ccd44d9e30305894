"""The rules of the house, checked on the source: forbidden calls, circles of imports, public names.

The order of the layers is checked by `lint-imports` (`make lint`).
"""

import ast
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "secateurs"
LAB = ROOT / "lab" / "src" / "secateurs_lab"
EXPERIMENTS = ROOT / "experiments"
PACKAGES = (SOURCE, LAB, EXPERIMENTS)
FILES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
FORBIDDEN_MODULES = {
    "pickle",
    "cloudpickle",
    "dill",
    "shelve",
    "marshal",
    "torchvision",
}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}


def place(path: Path) -> str:
    """The path from the top folder."""
    return path.relative_to(ROOT).as_posix()


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.AST):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module == "secateurs":
                yield from (f"secateurs.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=place)
def test_no_pickle_no_eval_no_imports_by_name(path):
    tree = parsed(path)
    roots = {module.split(".")[0] for module in imports(tree)}
    assert not roots & FORBIDDEN_MODULES
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if isinstance(node.func, ast.Name):
            assert name not in FORBIDDEN_CALLS, f"{path.name}:{node.lineno} calls {name}"
        if name in {"load", "save"} and ast.unparse(node.func) in {"torch.load", "torch.save"}:
            raise AssertionError(f"{path.name}:{node.lineno}: files are safetensors, never pickles")
        # Only what the source itself states is imported by name: a room's public names, the rules
        # of a registry, the table of commands.
        by_name = ("base/lazy", "base/registry", "cli/")
        allowed = place(path).startswith(tuple(f"src/secateurs/{start}" for start in by_name))
        assert name != "import_module" or allowed, f"{path.name}:{node.lineno}"


MODULES = {
    ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted(package.rglob("*.py"))
}


@functools.cache
def imported(name: str) -> set[str]:
    """The modules of ours that one module imports, wherever in the file it does so."""
    found = set()
    for node in ast.walk(parsed(MODULES[name])):
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {full if full in MODULES else node.module for full in inner}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {other for other in found if other in MODULES and other != name}


def opened(name: str) -> set[str]:
    """The modules of ours that one module names in a text: a registry opens them."""
    nodes = ast.walk(parsed(MODULES[name]))
    return {n.value for n in nodes if isinstance(n, ast.Constant) and n.value in MODULES}


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
OPENED_BY_NAME = {
    "secateurs.__main__",
    "experiments.__main__",
    "experiments.cifar",
    "experiments.cifar_card",
    "secateurs_lab.study.presets",
}


def test_every_file_is_imported_by_another():
    """A score, a model or an experiment in a file that nothing imports registers nothing, and the
    tests of its registry would be green without it.
    """
    used = set().union(*map(imported, MODULES), *map(opened, MODULES))
    alone = [
        name
        for name, path in MODULES.items()
        if path.name != "__init__.py"
        and name not in used | OPENED_BY_NAME
        and not name.startswith(("secateurs.cli.", "secateurs_lab.cli."))
    ]
    assert not alone, f"import them where their neighbours are imported: {', '.join(alone)}"


TESTS = Path(__file__).parent
# Tests of no single module: of the documentation, of promises that every module keeps, and of
# random networks that go through all of them.
ACROSS = {
    "test_docs.py",
    "test_examples.py",
    "test_foreign.py",
    "test_foreign_models.py",
    "test_house.py",
    "test_interrupts.py",
    "test_invariance.py",
    "test_k_pools.py",
    "test_mistakes.py",
    "test_readme.py",
    "test_safefile.py",
    "test_typed.py",
    "adapters/test_resume.py",
    "docs/test_names.py",
    "files/test_files.py",
    "gpu/test_cuda.py",
    "gpu/test_kernels.py",
    "gpu/test_launches.py",
    "gpu/test_selection.py",
    "gpu/test_skipped_steps.py",
    "gpu/test_studies.py",
    "strange/test_lifetime.py",
    "strange/test_strange.py",
}


@pytest.mark.parametrize(
    "test",
    sorted(path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")),
)
def test_a_test_lies_where_its_module_lies(test):
    """`tests/A/test_X.py` tests `src/secateurs/A/X.py`, or the package of that name.

    Where a module has several files of tests, they lie in a folder of its name:
    `tests/A/X/test_*.py`. What stands in `tests/docs` runs the page of its name, `tests/lab` is for
    the laboratory and `tests/papers` for the experiments.
    """
    path = Path(test)
    name = path.stem.removeprefix("test_")
    if test in ACROSS or path.parts[0] == "attack":
        return
    if path.parts[0] == "docs":
        assert (TESTS.parent / "docs" / f"{name}.md").exists()
        return
    package = {"lab": LAB, "papers": EXPERIMENTS}.get(path.parts[0])
    package, folder = (
        (SOURCE, path.parent) if package is None else (package, Path(*path.parts[1:-1]))
    )
    module = package / folder / name
    whole = (package / folder).with_suffix(".py")
    assert module.is_dir() or module.with_suffix(".py").exists() or whole.exists(), (
        f"there is no {place(module)} that {test} could test, nor a module of the name of its "
        "folder: name it after the module it tests, or add it to ACROSS"
    )


CORE = (
    "base",
    "masks",
    "graph",
    "paths",
    "scores",
    "channels",
    "optim",
    "prune",
    "files",
    "adapters",
)


@pytest.mark.parametrize("room", CORE)
def test_the_core_is_tested_without_the_laboratory(room):
    """Whoever changes the core runs its tests alone, where nothing else need be installed."""
    for path in sorted((TESTS / room).rglob("*.py")):
        roots = {module.split(".")[0] for module in imports(parsed(path))}
        assert not roots & {"secateurs_lab", "experiments", "lab"}, place(path)


def test_both_distributions_have_one_version():
    from secateurs.version import __version__
    from secateurs_lab.version import __version__ as of_the_lab

    assert of_the_lab == __version__
    assert f'"secateurs=={__version__}"' in (ROOT / "lab" / "pyproject.toml").read_text(
        encoding="utf-8"
    )


def test_no_assert_in_the_source():
    """Asserts vanish under -O: what the user can get wrong raises a typed error instead."""
    guilty = [p.name for p in FILES for node in ast.walk(parsed(p)) if isinstance(node, ast.Assert)]
    assert not guilty


def test_every_public_name_resolves():
    import secateurs

    for name in secateurs.__all__:
        assert getattr(secateurs, name) is not None, name


def test_import_does_not_load_torch():
    code = "import sys, secateurs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=SOURCE.parent).returncode == 0


def texts_opened_without_encoding(tree):
    """Lines that open, read or write text in whatever encoding the system has."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or any(k.arg == "encoding" for k in node.keywords):
            continue
        method = isinstance(node.func, ast.Attribute)
        name = node.func.attr if method else getattr(node.func, "id", "")
        given = [*map(ast.unparse, node.args), *(ast.unparse(k.value) for k in node.keywords)]
        wanting = {
            "read_text": not given,
            "write_text": len(given) == 1,
            # `Store.open(folder)` and the like have no mode.
            "open": any(re.fullmatch(r"'[rwax+]+t?'", text) for text in given[not method :])
            or (not method and len(given) == 1),
        }
        if wanting.get(name):
            yield node.lineno


@pytest.mark.parametrize("path", FILES, ids=place)
def test_text_files_have_an_encoding(path):
    """The default is another one on Windows."""
    tree = parsed(path)
    assert not list(texts_opened_without_encoding(tree))


def test_a_text_file_without_an_encoding_is_found():
    code = "open('a')\nopen('a', 'w')\np.open('w')\np.read_text()\np.write_text(x)\nq.open(a)\n"
    assert list(texts_opened_without_encoding(ast.parse(code))) == [1, 2, 3, 4, 5]
    code = "open('a', 'rb')\np.read_text('utf-8')\np.open('rb')\nopen('a', encoding='utf-8')\n"
    assert not list(texts_opened_without_encoding(ast.parse(code)))


# What Windows lacks, so that whatever needs it on the way is seen here.
WITHOUT = """
import os, sys
import torch, scipy.stats, rich.console, typer  # these find ways of their own there
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for name in ("getuid", "geteuid", "fork", "fchmod", "O_NOFOLLOW", "O_DIRECTORY", "O_CLOEXEC"):
    delattr(os, name)
import secateurs as sc
for room in ("masks", "graph", "paths", "scores", "channels", "optim", "prune", "files", "proof"):
    for name in getattr(sc, room).__all__:
        getattr(getattr(sc, room), name)
f, g = torch.nn.Linear(3, 2).eval(), torch.nn.Linear(3, 2).eval()
sc.certify(f, g, around=torch.zeros(1, 3), radius=0.1).save("certificate.json")
import smoke
smoke.try_library()
"""


def test_the_library_works_without_what_windows_lacks(tmp_path):
    """Every public name of the core, and the smoke test of the wheels, in a process of its own."""
    paths = [str(SOURCE.parent), str(ROOT / "benchmarks")]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        cwd=tmp_path,
        env=os.environ | {"SECATEURS_NATIVE": "0", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "weights kept" in done.stdout
