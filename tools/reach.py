"""Which files a call can lead to: `python tools/reach.py prune_` lists them, room by room.

Follows the imports from the file that defines the name, also those inside functions. A name that a
package hands on counts as an import of the file that defines it; a package that does not open on
first use brings all that it imports. What runs in a call is less. Not counted are the methods of
what is handed over: a certificate given to `save_sparse` brings files of `proof` and `graph`.
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
FILES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}


def reach(name: str) -> list[str]:
    """The modules that a call of `name` can lead to."""
    found, left = set[str](), [defining(name)]
    while left:
        module = left.pop()
        if module not in found:
            found.add(module)
            left += _imported(module)
    return sorted(found)


def room(module: str) -> str:
    """The folder of a module, or its own name at the top."""
    return module.split(".")[1]


def lines(module: str) -> int:
    """How many lines its file has."""
    return FILES[module].read_text(encoding="utf-8").count("\n")


def defining(name: str) -> str:
    """The module that defines a public name: `hold`, or `theory.plan` where rooms share one."""
    room_of_name, _, last = name.rpartition(".")
    packages = [p for p, path in FILES.items() if path.name == "__init__.py"]
    for package in [f"secateurs.{room_of_name}"] if room_of_name else packages:
        home = _offers(package).get(last) if package in FILES else None
        if home is not None:
            return _home(*home)
    raise SystemExit(f"no room offers {name!r}: give a public name, as `hold` or `theory.plan`.")


def _home(package: str, name: str) -> str:
    """The module that defines what is imported from `package` as `name`."""
    if f"{package}.{name}" in FILES:
        return f"{package}.{name}"
    offered = _offers(package).get(name)
    return package if offered is None else _home(*offered)


def _imported(module: str) -> Iterator[str]:
    """The modules that are loaded with one, or by a function of it."""
    parts = module.split(".")
    for package in (".".join(parts[:end]) for end in range(2, len(parts))):
        if _offers(package) and not _opens_on_first_use(package):
            yield package
    if FILES[module].name == "__init__.py" and _opens_on_first_use(module):
        return
    # Which score is asked for decides what its rule imports when it runs.
    for node in _code(_tree(module), functions=".scores.rules" not in module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in FILES)
        elif isinstance(node, ast.ImportFrom) and node.module in FILES:
            yield from (_home(node.module, alias.name) for alias in node.names)
        # A registry opens the files of its rules by their names.
        elif isinstance(node, ast.Constant) and node.value in FILES.keys() - {"secateurs"}:
            yield node.value


def _code(tree: ast.AST, *, functions: bool) -> Iterator[ast.AST]:
    """All nodes but those that only type checkers read."""
    for node in ast.iter_child_nodes(tree):
        typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not typing and (functions or not isinstance(node, ast.FunctionDef)):
            yield node
            yield from _code(node, functions=functions)


def _opens_on_first_use(package: str) -> bool:
    return "open_on_first_use(__name__)" in FILES[package].read_text(encoding="utf-8")


@cache
def _offers(package: str) -> dict[str, tuple[str, str]]:
    """The names a package hands on, with where it has them from."""
    if FILES[package].name != "__init__.py":
        return {}
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(_tree(package))
        if isinstance(node, ast.ImportFrom) and node.module in FILES
        for alias in node.names
    }


@cache
def _tree(module: str) -> ast.AST:
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


def main(name: str) -> None:
    """Print the files by room, with their lines, and the sum."""
    found = reach(name)
    for place in sorted({room(module) for module in found}):
        inside = [module for module in found if room(module) == place]
        print(f"{place}: {len(inside)} files, {sum(map(lines, inside)):,} lines")
        for module in inside:
            print(f"  {FILES[module].relative_to(SOURCE / 'secateurs')} {lines(module):,}")
    print(f"in all {len(found)} files, {sum(map(lines, found)):,} lines")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
