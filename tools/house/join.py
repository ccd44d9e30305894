# ruff: noqa
"""The mechanical half of the house move: joins modules, rewrites imports, moves tests.

To be deleted with the move it makes.

    python3.12 tools/house/join.py WORKTREE [--no-format]

Run with Python 3.12 or newer (positions inside f-strings). Transforms WORKTREE from the old layout
into the new one, in place. Deterministic; a file that is not there is skipped; a file that the map
does not know stays where it is and is listed (extra-moves.txt: `old/path.py: new/path.py`, below
src/secateurs, one a line, wins over the map).

Data beside this script: map.json (old file -> new file), renames.json (module -> {old: new}),
docs.json (docstrings of targets and rooms), edits.json (file -> [[old text, new text], ...] on the
new layout), helpers.json (tests: helper -> new place).
"""

import ast
import json
import re
import subprocess
import sys
import textwrap
import tokenize
import io
import builtins
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent
ROOT = Path(sys.argv[1]).resolve()
SRC = ROOT / "src"
PKG = "secateurs"
BUILTINS = set(dir(builtins))
PROBLEMS: list[str] = []
NOTES: list[str] = []


def load(name, default):
    file = HERE / name
    return json.loads(file.read_text()) if file.exists() else default


MAP = load("map.json", {})
for line in (
    (HERE / "extra-moves.txt").read_text().splitlines()
    if (HERE / "extra-moves.txt").exists()
    else ()
):
    line = line.partition("#")[0].strip()
    if line:
        old, new = (part.strip() for part in line.split(":"))
        MAP[old] = new
RENAMES = load("renames.json", {})
DOCS = load("docs.json", {})
EDITS = load("edits.json", {})
HELPERS = load("helpers.json", {})
DROPS = load("drops.json", {})


def dotted(relative: str) -> str:
    """`paths/norms/norms.py` -> `secateurs.paths.norms.norms`."""
    parts = [PKG, *Path(relative).with_suffix("").parts]
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def file_of(name: str) -> str:
    return "/".join(name.split(".")[1:]) + ".py"


# ---------------------------------------------------------------- reading one file


class Text:
    """Source with its tree, and edits by position."""

    def __init__(self, text: str):
        self.text = text
        self.tree = ast.parse(text)
        self.lines = text.splitlines(keepends=True)
        self.starts = [0]
        for each in self.lines:
            self.starts.append(self.starts[-1] + len(each))
        self.edits: list[tuple[int, int, str]] = []

    def at(self, line: int, column: int) -> int:
        raw = self.lines[line - 1].encode()[:column]
        return self.starts[line - 1] + len(raw.decode())

    def start(self, node) -> int:
        return self.at(node.lineno, node.col_offset)

    def end(self, node) -> int:
        return self.at(node.end_lineno, node.end_col_offset)

    def edit(self, start: int, end: int, new: str) -> None:
        if (start, end, new) not in self.edits:
            self.edits.append((start, end, new))

    def done(self) -> str:
        out, last = [], 0
        for start, end, new in sorted(self.edits):
            if start < last:
                PROBLEMS.append(
                    f"overlapping edits: {self.text[start:end]!r} -> {new!r}"
                )
                continue
            out += [self.text[last:start], new]
            last = end
        return "".join([*out, self.text[last:]])


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Scope:
    def __init__(self, node, kind, parent):
        self.node, self.kind, self.parent = node, kind, parent
        self.bound: dict[str, list[ast.AST]] = defaultdict(list)
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()


class Reader(ast.NodeVisitor):
    """Which scope each name means. After `read`: `refs` = [(node, name, scope it is bound in or None
    for global/builtin, scope it stands in)]."""

    def __init__(self, tree):
        self.module = Scope(tree, "module", None)
        self.scope = self.module
        self.uses: list[tuple[ast.AST, str, Scope]] = []
        self.imports: list[tuple[ast.AST, Scope]] = []
        self.global_lines: list[ast.Global] = []
        for node in tree.body:
            self.visit(node)

    def bind(self, name, node, scope=None):
        scope = scope or self.scope
        if name in scope.globals:
            scope = self.module
        scope.bound[name].append(node)

    def visit_Name(self, node):
        if isinstance(node.ctx, (ast.Store, ast.Del)):
            self.bind(node.id, node)
        self.uses.append((node, node.id, self.scope))

    def visit_NamedExpr(self, node):
        scope = self.scope
        while scope.kind == "comprehension":
            scope = scope.parent
        self.bind(node.target.id, node.target, scope)
        self.uses.append((node.target, node.target.id, scope))
        self.visit(node.value)

    def visit_Global(self, node):
        self.scope.globals.update(node.names)
        self.global_lines.append(node)

    def visit_Nonlocal(self, node):
        self.scope.nonlocals.update(node.names)

    def visit_Import(self, node):
        self.imports.append((node, self.scope))
        for alias in node.names:
            self.bind(alias.asname or alias.name.split(".")[0], node)

    def visit_ImportFrom(self, node):
        self.imports.append((node, self.scope))
        for alias in node.names:
            self.bind(alias.asname or alias.name, node)

    def visit_ExceptHandler(self, node):
        if node.name:
            self.bind(node.name, node)
        self.generic_visit(node)

    def visit_MatchAs(self, node):
        if node.name:
            self.bind(node.name, node)
        self.generic_visit(node)

    def visit_MatchStar(self, node):
        if node.name:
            self.bind(node.name, node)

    def visit_MatchMapping(self, node):
        if node.rest:
            self.bind(node.rest, node)
        self.generic_visit(node)

    def inside(self, node, kind):
        scope = Scope(node, kind, self.scope)
        self.scope, before = scope, self.scope
        return before

    def visit_FunctionDef(self, node):
        self.bind(node.name, node)
        for each in node.decorator_list:
            self.visit(each)
        self.arguments_outside(node.args)
        if node.returns:
            self.visit(node.returns)
        before = self.inside(node, "function")
        self.arguments_inside(node.args)
        # What a body declares global counts for all of it.
        for each in ast.walk(node):
            if isinstance(each, ast.Global):
                self.scope.globals.update(each.names)
        for each in node.body:
            self.visit(each)
        self.scope = before

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node):
        self.arguments_outside(node.args)
        before = self.inside(node, "function")
        self.arguments_inside(node.args)
        self.visit(node.body)
        self.scope = before

    def arguments_outside(self, args):
        for each in [
            *args.posonlyargs,
            *args.args,
            *args.kwonlyargs,
            args.vararg,
            args.kwarg,
        ]:
            if each is not None and each.annotation:
                self.visit(each.annotation)
        for each in [*args.defaults, *args.kw_defaults]:
            if each is not None:
                self.visit(each)

    def arguments_inside(self, args):
        for each in [
            *args.posonlyargs,
            *args.args,
            *args.kwonlyargs,
            args.vararg,
            args.kwarg,
        ]:
            if each is not None:
                self.bind(each.arg, each)

    def visit_ClassDef(self, node):
        self.bind(node.name, node)
        for each in [
            *node.decorator_list,
            *node.bases,
            *(k.value for k in node.keywords),
        ]:
            self.visit(each)
        before = self.inside(node, "class")
        for each in node.body:
            self.visit(each)
        self.scope = before

    def comprehension(self, node):
        first = node.generators[0]
        self.visit(first.iter)
        before = self.inside(node, "comprehension")
        for index, each in enumerate(node.generators):
            self.visit(each.target)
            if index:
                self.visit(each.iter)
            for test in each.ifs:
                self.visit(test)
        if isinstance(node, ast.DictComp):
            self.visit(node.key)
            self.visit(node.value)
        else:
            self.visit(node.elt)
        self.scope = before

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = (
        comprehension
    )

    def home(self, name, scope):
        """The scope in which `name`, standing in `scope`, is bound; None if nowhere (builtin)."""
        first = True
        while scope is not None:
            if name in scope.globals:
                return self.module if name in self.module.bound else None
            if name in scope.bound and (first or scope.kind != "class"):
                return scope
            if scope.kind != "comprehension":
                first = False
            scope = scope.parent
        return None


class Module:
    """One Python file of the old layout."""

    def __init__(self, path: Path, name: str | None):
        self.path, self.name = path, name
        self.source = Text(path.read_text())
        self.package = path.name == "__init__.py"
        self.reader = Reader(self.source.tree)
        self.target = name
        # name -> ("def",) | ("from", module, name) | ("module", dotted)
        self.names: dict[str, tuple] = {}
        self.type_checking: list[ast.If] = []
        for node in self.source.tree.body:
            if is_type_checking(node):
                self.type_checking.append(node)
                for each in node.body:
                    self.take(each)
            else:
                self.take(node)
        for name_, nodes in self.reader.module.bound.items():
            if any(not isinstance(n, (ast.Import, ast.ImportFrom)) for n in nodes):
                self.names[name_] = ("def",)
            elif name_ not in self.names:  # an import in try or if
                for node in nodes:
                    self.take(node)

    def take(self, node):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                self.names[alias.asname or alias.name] = (
                    "from",
                    node.module,
                    alias.name,
                )
        elif isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.split(".")[0]
                self.names[local] = ("module", alias.name if alias.asname else local)


def is_type_checking(node) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in (
        "TYPE_CHECKING",
        "typing.TYPE_CHECKING",
    )


OLD: dict[str, Module] = {}
for path in sorted((SRC / PKG).rglob("*.py")):
    relative = path.relative_to(SRC / PKG).as_posix()
    module = Module(path, dotted(relative))
    module.relative = relative
    OLD[module.name] = module
    if relative in MAP:
        module.target = dotted(MAP[relative])
        module.mapped = True
    else:
        module.mapped = relative in set(MAP.values())
        if not module.mapped and not module.package:
            NOTES.append(f"not in the map, stays: {relative}")

# A package that has nothing of its own any more goes; a module may take its name.
TARGETS = {m.target for m in OLD.values() if not m.package or m.relative in MAP}
PACKAGES = {PKG}
for target in TARGETS:
    parts = target.split(".")
    PACKAGES |= {".".join(parts[:i]) for i in range(1, len(parts))}
both = PACKAGES & TARGETS
for each in sorted(both):
    PROBLEMS.append(f"{each} would be both a module and a package")


def below(name: str, package: str) -> bool:
    return name.startswith(package + ".")


def resolve(module: str, name: str, seen=()):
    """What `from module import name` means in the old layout: ("sym", module, name), ("mod", dotted) or
    None (not ours, or not known)."""
    if module not in OLD:
        return None
    known = OLD[module].names.get(name)
    if known is None or known == ("from", module, name):
        if f"{module}.{name}" in OLD:
            return ("mod", f"{module}.{name}")
        if module == PKG and name in HOME:
            return resolve(HOME[name], name)
        return None
    if known[0] == "def":
        return ("sym", module, name)
    if known[0] == "module":
        return ("mod", known[1]) if known[1] in OLD else ("ext", known[1], None)
    if (module, name) in seen:
        return None
    inner = resolve(known[1], known[2], (*seen, (module, name)))
    return inner or (("ext", known[1], known[2]) if known[1] not in OLD else None)


HOME: dict[str, str] = {}
for node in OLD[PKG].source.tree.body:
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(
        node.value, ast.Dict
    ):
        for key, value in zip(node.value.keys, node.value.values, strict=True):
            if (
                isinstance(key, ast.Constant)
                and isinstance(value, ast.Constant)
                and str(value.value).startswith(PKG + ".")
            ):
                HOME[key.value] = value.value


def final(module: str, name: str) -> str:
    """The name a definition has in the new layout."""
    return RENAMES.get(module, {}).get(name, name)


def leader(name: str) -> str | None:
    """Where an old module or package is found in the new layout; None where a package just went."""
    module = OLD[name]
    if not module.package or module.relative in MAP:
        return module.target
    if name in PACKAGES or name in TARGETS:
        return name
    inner = {m.target for m in OLD.values() if below(m.name, name) and not m.package}
    return inner.pop() if len(inner) == 1 else None


# ---------------------------------------------------------------- faces of packages


def symbol_target(found) -> str:
    return OLD[found[1]].target


def exports(module: Module) -> list[tuple[str, tuple]]:
    """What a package's __init__ hands on: (public name, what it is)."""
    out = []
    for name, known in module.names.items():
        if known[0] == "from" and str(known[1]).split(".")[0] == PKG:
            found = resolve(known[1], known[2])
            if found and found[0] == "sym":
                out.append((name, found))
    return out


# package -> names that leave it for another room's face; face -> names it gets
LEAVES: dict[str, set[str]] = defaultdict(set)
GETS: dict[str, dict[str, tuple]] = defaultdict(dict)
for module in OLD.values():
    if not module.package or module.name == PKG:
        continue
    for public, found in exports(module):
        target, origin = symbol_target(found), found[1]
        if module.name in PACKAGES and (
            below(target, module.name) or not below(origin, module.name)
        ):
            continue
        if not below(origin, module.name):
            continue
        LEAVES[module.name].add(public)
        room = ".".join(target.split(".")[:2])
        # Only what stood in the face of a whole room is offered by the new room.
        if module.name.count(".") == 1 and room in PACKAGES and room != module.name:
            GETS[room][public] = found
        # the faces of folders that went (ship.compaction) gave names to their room's face, too
OFFERS: dict[str, dict[str, tuple]] = defaultdict(dict)
for module in OLD.values():
    if module.package and module.name in PACKAGES:
        for public, found in exports(module):
            if public not in LEAVES[module.name]:
                OFFERS[module.name][public] = found
for face, names in GETS.items():
    OFFERS[face].update(names)


def place(user: str | None, module: str, name: str):
    """Where `from module import name` goes: (new module, new name, what it is)."""
    found = resolve(module, name)
    if found is None:
        new = leader(module) if module in OLD else module
        if new is None:
            PROBLEMS.append(f"{user}: from {module} import {name}: unknown")
        return new or module, name, None
    if found[0] == "ext":
        new = leader(module)
        return new, name, None
    if found[0] == "mod":
        new = leader(found[1])
        if new is None:
            PROBLEMS.append(f"{user}: from {module} import {name}: the package went")
            return module, name, found
        head, _, tail = new.rpartition(".")
        return head, tail, found
    target, new_name = symbol_target(found), final(found[1], found[2])
    inside = user is not None and any(
        user == p or below(user, p) for p in parents(target)[1:]
    )
    origin = OLD[module]
    if origin.package:
        if module == PKG:
            return module, name, found
        if (
            module in PACKAGES
            and OFFERS[module].get(name) == found
            and not (user and below(user, module))
        ):
            return module, name, found
        room = ".".join(target.split(".")[:2])
        if not inside and room != target and OFFERS.get(room, {}).get(name) == found:
            return room, name, found
    elif module in PACKAGES:
        PROBLEMS.append(f"{user}: {module} became a package")
    if target.endswith(".__init__"):
        target = target.removesuffix(".__init__")
    return target, new_name, found


def parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


# ---------------------------------------------------------------- rewriting one file


class Rewriter:
    """Edits one file for the new layout: names, lazy imports, strings. Top imports are collected in
    `tops` (joined members) or rewritten in place (`whole`)."""

    def __init__(self, module: Module, target: str | None, whole: bool, aliases=None):
        self.module, self.target, self.whole = module, target, whole
        self.text = module.source
        self.reader = module.reader
        self.top: list[tuple] = []  # (kind, module, name, asname, comment)
        self.checked: list[tuple] = []  # below TYPE_CHECKING
        self.cuts: list[tuple[int, int]] = []
        self.new_names: dict[
            tuple[int, str], str
        ] = {}  # (id(scope), local) -> new name
        self.module_names: dict[
            tuple[int, str], tuple
        ] = {}  # local module -> (old dotted, new local | None)
        self.aliases = aliases or {}  # top-level imports that need another local name
        self.renamed_here = {
            old: new
            for old, new in RENAMES.get(module.name or "", {}).items()
            if old in module.names
        }
        self.run()

    def run(self):
        module_scope = self.reader.module
        for old, new in self.renamed_here.items():
            if self.module.names[old] == ("def",):
                self.new_names[id(module_scope), old] = new
        self.top_nodes = set()
        self.top_level_imports()
        for node, scope in self.reader.imports:
            if id(node) not in self.top_nodes:
                self.lazy(node, scope)
        self.rename()
        self.strings()

    # imports

    def split(self, node, scope):
        """Parts of an import: [(module, name, asname)] that stay, and notes on the scope's names."""
        kept = []
        for alias in node.names:
            local = alias.asname or alias.name
            if isinstance(node, ast.Import):
                root = alias.name.split(".")[0]
                if root != PKG:
                    kept.append((None, alias.name, alias.asname))
                elif alias.asname:
                    new = leader(alias.name) or alias.name
                    if OLD.get(alias.name) is not None:
                        head, _, tail = new.rpartition(".")
                        self.module_names[id(scope), local] = (alias.name, local)
                    kept.append((None, new, alias.asname))
                else:
                    new = (
                        leader(alias.name) if alias.name in OLD else alias.name
                    ) or alias.name
                    kept.append((None, new, None))
                continue
            if node.module is None or node.level or node.module.split(".")[0] != PKG:
                kept.append((node.module, alias.name, alias.asname))
                if scope is self.reader.module and local in self.aliases.get(
                    node.module, {}
                ):
                    new_local = self.aliases[node.module][local]
                    kept[-1] = (node.module, alias.name, new_local)
                    self.new_names[id(scope), local] = new_local
                continue
            where, name, found = place(self.target, node.module, alias.name)
            if found and found[0] == "mod":
                new = f"{where}.{name}"
                if new == self.target:
                    self.module_names[id(scope), local] = (found[1], None)
                    continue
                new_local = alias.asname or name
                if (
                    alias.asname is None
                    and name != alias.name
                    and self.taken(name, new)
                ):
                    new_local = local
                if scope is self.reader.module and local in self.aliases.get(
                    where, {}
                ):
                    new_local = self.aliases[where][local]
                self.module_names[id(scope), local] = (found[1], new_local)
                kept.append((where, name, None if new_local == name else new_local))
                continue
            if where == self.target and self.target is not None:
                if local != name:
                    self.new_names[id(scope), local] = name
                else:
                    self.dropped.append((scope, local))
                self.new_names[id(scope), local] = name
                self.intra.add((id(scope), local))
                continue
            new_local = alias.asname or name
            if new_local == name:
                new_local = name
            if scope is self.reader.module and new_local in self.aliases.get(
                where, {}
            ):
                new_local = self.aliases[where][new_local]
            if new_local != local:
                self.new_names[id(scope), local] = new_local
            plain = new_local == name and alias.asname != alias.name
            kept.append((where, name, None if plain else new_local))
        return kept

    def taken(self, name, new):
        """Whether a name means anything but this new module anywhere in the file."""
        known = self.module.names.get(name)
        if known and known[0] == "from":
            found = resolve(known[1], known[2])
            if found and found[0] == "mod" and leader(found[1]) == new:
                known = None
                scopes = [s for s in self.all_scopes() if s is not self.reader.module]
                return any(name in s.bound for s in scopes)
        return any(name in s.bound for s in self.all_scopes()) or known is not None

    def all_scopes(self):
        seen = {}
        for _, _, scope in self.reader.uses:
            seen[id(scope)] = scope
        seen[id(self.reader.module)] = self.reader.module
        return seen.values()

    dropped: list
    intra: set

    def top_level_imports(self):
        self.dropped, self.intra = [], set()
        body = self.text.tree.body
        for node in body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self.top_nodes.add(id(node))
                kept = self.split(node, self.reader.module)
                self.place_top(node, kept, self.top)
            elif (
                is_type_checking(node)
                and all(
                    isinstance(n, (ast.Import, ast.ImportFrom, ast.Pass))
                    for n in node.body
                )
                and not node.orelse
            ):
                for each in node.body:
                    if isinstance(each, ast.Pass):
                        if self.whole:
                            self.text.edit(
                                self.text.starts[node.lineno - 1],
                                self.text.starts[node.end_lineno],
                                "",
                            )
                        continue
                    self.top_nodes.add(id(each))
                    kept = self.split(each, self.reader.module)
                    self.place_top(each, kept, self.checked, cut=not self.whole)
                if not self.whole:
                    self.cut(node)
            elif is_type_checking(node):
                NOTES.append(
                    f"{self.module.path}: TYPE_CHECKING with more than imports"
                )

    def comment(self, node) -> str:
        line = self.text.lines[node.end_lineno - 1]
        tail = line.encode()[node.end_col_offset :].decode().strip()
        found = tail if tail.startswith("#") else ""
        if not found and node.lineno != node.end_lineno:
            for number in range(node.lineno, node.end_lineno + 1):
                got = re.search(r"#\s*noqa.*$", self.text.lines[number - 1])
                if got:
                    found = got.group(0).strip()
        return found

    def cut(self, node):
        start = self.text.starts[node.lineno - 1]
        end = self.text.starts[node.end_lineno]
        self.cuts.append((start, end))

    def place_top(self, node, kept, into, cut=True):
        comment = self.comment(node)
        if self.whole:
            self.replace_import(node, kept)
            return
        for where, name, asname in kept:
            into.append((where, name, asname, comment))
        # comment lines right above an import belong to it
        lead = []
        number = node.lineno - 2
        while (
            number >= 0
            and self.text.lines[number].lstrip().startswith("#")
            and not self.text.lines[number].startswith(" ")
        ):
            lead.insert(0, self.text.lines[number].rstrip())
            number -= 1
        if lead and cut:
            start = self.text.starts[number + 1]
            self.cuts.append((start, self.text.starts[node.lineno - 1]))
            if kept:
                into.append(("#", "\n".join(lead), kept, comment))
                for each in kept:
                    into.remove((*each, comment))
            else:
                NOTES.append(
                    f"{self.module.name}: a comment above an import went: {' '.join(lead)}"
                )
        if cut:
            self.cut(node)

    def replace_import(self, node, kept):
        start, end = self.text.start(node), self.text.end(node)
        if kept == [
            (
                node.module if isinstance(node, ast.ImportFrom) else None,
                a.name,
                a.asname,
            )
            for a in node.names
        ]:
            return
        indent = self.text.lines[node.lineno - 1][
            : len(self.text.lines[node.lineno - 1])
            - len(self.text.lines[node.lineno - 1].lstrip())
        ]
        if kept:
            parts = import_lines([(w, n, a, "") for w, n, a in kept])
            self.text.edit(start, end, ("\n" + indent).join(parts))
        else:
            line_start = self.text.starts[node.lineno - 1]
            line_end = self.text.starts[node.end_lineno]
            rest = self.text.text[end:line_end].strip()
            if rest:
                NOTES.append(
                    f"{self.module.path}: a comment behind an import went: {rest}"
                )
            above = (
                self.text.lines[node.lineno - 2].strip() if node.lineno > 1 else ""
            )
            if above.startswith("#"):
                NOTES.append(
                    f"{self.module.path}:{node.lineno}: a lazy import went, its comment stays: {above}"
                )
            self.text.edit(line_start, line_end, "")

    def lazy(self, node, scope):
        kept = self.split(node, scope)
        self.replace_import(node, kept)

    # names

    def rename(self):
        parents_of = {}
        for node in ast.walk(self.text.tree):
            for child in ast.iter_child_nodes(node):
                parents_of[id(child)] = node
        self.parents_of = parents_of
        for node, name, scope in self.reader.uses:
            home = self.reader.home(name, scope)
            if home is None:
                continue
            key = (id(home), name)
            if key in self.module_names:
                self.attribute(node, name, key, scope)
            elif key in self.new_names and self.new_names[key] != name:
                self.put(node, name, self.new_names[key], scope)
            elif (
                key in self.new_names
                and key in self.intra
                and home is not self.reader.module
            ):
                # a lazy import of the same file went: the name must now be the global one
                self.check_free(self.new_names[key], scope, node, but=home)
        for name, new in (
            (k[1], v)
            for k, v in self.new_names.items()
            if k[0] == id(self.reader.module) and k[1] != v
        ):
            if ("def",) == self.module.names.get(name):
                for node in self.reader.module.bound[name]:
                    if isinstance(
                        node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
                    ):
                        line = self.text.starts[node.lineno - 1]
                        got = re.compile(
                            rf"\b(def|class)\s+{re.escape(name)}\b"
                        ).search(self.text.text, line)
                        self.text.edit(got.end() - len(name), got.end(), new)
            for node in self.reader.global_lines:
                if name in node.names:
                    s, e = self.text.start(node), self.text.end(node)
                    self.text.edit(
                        s, e, re.sub(rf"\b{name}\b", new, self.text.text[s:e])
                    )

    def check_free(self, new, scope, node, but=None):
        while scope is not None and scope is not self.reader.module:
            if new in scope.bound and scope is not but:
                if not (scope.kind == "class"):
                    PROBLEMS.append(
                        f"{self.module.path}:{node.lineno}: {new} is local here, and is meant global"
                    )
            scope = scope.parent

    def put(self, node, old, new, scope):
        self.check_free(new, scope, node, but=self.reader.home(old, scope))
        start, end = self.text.start(node), self.text.end(node)
        if self.text.text[start:end] != old:
            PROBLEMS.append(
                f"{self.module.path}:{node.lineno}: position of {old} is {self.text.text[start:end]!r}"
            )
            return
        self.text.edit(start, end, new)

    def attribute(self, node, name, key, scope):
        old_module, new_local = self.module_names[key]
        parent = self.parents_of.get(id(node))
        if not (isinstance(parent, ast.Attribute) and parent.value is node):
            if new_local is None:
                PROBLEMS.append(
                    f"{self.module.path}:{node.lineno}: module {name} used as a value in its own file"
                )
            elif new_local != name:
                self.put(node, name, new_local, scope)
            self.module_value(node, parent, old_module)
            return
        # descend through packages: mod.sub.attr
        attr = parent.attr
        target = leader(old_module)
        if new_local is None:
            found = resolve(old_module, attr)
            new = final(found[1], found[2]) if found and found[0] == "sym" else attr
            self.check_free(new, scope, node)
            self.text.edit(self.text.start(node), self.text.end(parent), new)
            return
        found = resolve(old_module, attr)
        new_attr = attr
        if found and found[0] == "sym":
            owner = symbol_target(found)
            if found[1] == old_module or owner == target:
                new_attr = final(found[1], found[2])
        if new_local != name:
            self.put(node, name, new_local, scope)
        if new_attr != attr:
            end = self.text.end(parent)
            self.text.edit(end - len(attr), end, new_attr)

    def module_value(self, node, parent, old_module):
        """`monkeypatch.setattr(module, "name", ...)`: the name in the string follows."""
        if isinstance(parent, ast.Call) and node in parent.args:
            index = parent.args.index(node)
            if index + 1 < len(parent.args):
                following = parent.args[index + 1]
                if isinstance(following, ast.Constant) and isinstance(
                    following.value, str
                ):
                    found = resolve(old_module, following.value)
                    if (
                        found
                        and found[0] == "sym"
                        and symbol_target(found) == leader(old_module)
                    ):
                        new = final(found[1], found[2])
                        if new != following.value:
                            s, e = (
                                self.text.start(following),
                                self.text.end(following),
                            )
                            self.text.edit(s, e, repr(new).replace("'", '"'))

    # strings

    def strings(self):
        renamed = {
            k[1]: v
            for k, v in self.new_names.items()
            if k[0] == id(self.reader.module) and k[1] != v
        }
        local_defs = {
            k: v for k, v in renamed.items() if self.module.names.get(k) == ("def",)
        }
        in_annotations = set()
        for node in ast.walk(self.text.tree):
            for field in ("annotation", "returns"):
                inner = getattr(node, field, None)
                if isinstance(inner, ast.AST):
                    in_annotations |= {id(n) for n in ast.walk(inner)}
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) in ("cast", "TypeVar")
                and node.args
            ):
                in_annotations |= {id(n) for a in node.args for n in ast.walk(a)}
        for node in ast.walk(self.text.tree):
            if isinstance(node, ast.JoinedStr):
                continue
            if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                continue
            if isinstance(self.parents_of.get(id(node)), ast.JoinedStr):
                start, end = self.text.start(node), self.text.end(node)
            start, end = self.text.start(node), self.text.end(node)
            raw = self.text.text[start:end]
            new = raw
            if id(node) in in_annotations:
                for old_name, new_name in renamed.items():
                    new = re.sub(rf"(?<![\w.]){re.escape(old_name)}\b", new_name, new)
            new = rewrite_prose(new)
            for old_name, new_name in local_defs.items():
                new = new.replace(f"`{old_name}`", f"`{new_name}`").replace(
                    f"`{old_name}(", f"`{new_name}("
                )
            if new != raw:
                self.text.edit(start, end, new)
        try:
            tokens = list(
                tokenize.generate_tokens(io.StringIO(self.text.text).readline)
            )
        except tokenize.TokenError:
            tokens = []
        for token in tokens:
            if token.type == tokenize.COMMENT:
                new = rewrite_prose(token.string)
                for old_name, new_name in local_defs.items():
                    new = new.replace(f"`{old_name}`", f"`{new_name}`").replace(
                        f"`{old_name}(", f"`{new_name}("
                    )
                if new != token.string:
                    s = self.text.starts[token.start[0] - 1] + token.start[1]
                    if not any(a <= s < b for a, b in self.cuts):
                        self.text.edit(s, s + len(token.string), new)

    def body(self) -> str:
        """The text without docstring and top imports."""
        first = self.text.tree.body[0] if self.text.tree.body else None
        if (
            isinstance(first, ast.Expr)
            and isinstance(first.value, ast.Constant)
            and isinstance(first.value.value, str)
        ):
            self.cut(first)
        edits = self.text.edits
        for start, end in self.cuts:
            edits = [e for e in edits if not (start <= e[0] < end)]
        self.text.edits = [*edits, *((s, e, "") for s, e in merged(self.cuts))]
        return self.text.done().strip("\n")


def merged(ranges):
    out = []
    for start, end in sorted(ranges):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out


def import_lines(parts) -> list[str]:
    """Statements for [(module or None, name, asname, comment)], one a module."""
    plain, grouped, single = [], defaultdict(list), []
    for where, name, asname, comment in parts:
        text = f"{name} as {asname}" if asname else name
        if where is None:
            line = f"import {text}" + (f"  {comment}" if comment else "")
            if line not in plain:
                plain.append(line)
        elif comment:
            single.append((where, text, comment))
        elif text not in grouped[where]:
            grouped[where].append(text)
    lines = list(plain)
    for where, names in sorted(grouped.items()):
        lines.append(f"from {where} import {', '.join(sorted(names))}")
    for where, text, comment in dict.fromkeys(single):
        lines.append(f"from {where} import {text}  {comment}")
    return lines


# ---------------------------------------------------------------- prose

DOTTED = re.compile(r"\bsecateurs((?:\.[A-Za-z_]\w*)+)")


def rewrite_dotted(match) -> str:
    parts = match.group(0).split(".")
    return ".".join(rewrite_parts(parts))


def rewrite_parts(parts: list[str]) -> list[str]:
    for cut in range(len(parts), 1, -1):
        head = ".".join(parts[:cut])
        if head not in OLD:
            continue
        rest = parts[cut:]
        # The room's public function rather than the module of its name (`secateurs.ship.compact`).
        parent, _, last = head.rpartition(".")
        if (
            not rest
            and parent in OLD
            and OLD[parent].names.get(last, ("",))[0] == "from"
        ):
            continue
        module = OLD[head]
        if rest:
            found = resolve(head, rest[0])
            if found and found[0] == "sym":
                if module.package:
                    where, name, _ = place(None, head, rest[0])
                    return [*where.split("."), name, *rest[1:]]
                target = module.target
                if found[1] == head or symbol_target(found) == target:
                    return [*target.split("."), final(found[1], found[2]), *rest[1:]]
                return [*target.split("."), *rest]
            new = leader(head)
            return [*new.split("."), *rest] if new else parts
        new = leader(head)
        return new.split(".") if new else parts
    return parts


PATHS: dict[str, str] = {}
FOLDERS: dict[str, str] = {}


def rewrite_api(match) -> str:
    """The lists of docs/api: names whose face moved, under their new face."""
    module, names = match.group(1), match.group(2).split()
    if module not in OLD:
        return match.group(0)
    grouped: dict[str, list[str]] = {}
    for name in names:
        found = resolve(module, name)
        where = (
            place(None, module, name)[0] if found and found[0] == "sym" else module
        )
        grouped.setdefault(where, []).append(name)
    if list(grouped) == [module]:
        return match.group(0)
    return "\n".join(
        f"```{{api}} {where}\n{' '.join(own)}\n```" for where, own in grouped.items()
    )


def rewrite_prose(text: str) -> str:
    text = re.sub(
        r"```\{api\} (secateurs(?:\.\w+)*)\n(.*?)```", rewrite_api, text, flags=re.S
    )
    text = DOTTED.sub(rewrite_dotted, text)

    def path(match):
        prefix, inner = match.group(1) or "", match.group(2)
        if not prefix and inner.count("/") == 0:
            return match.group(0)
        new = PATHS.get(inner)
        return prefix + new if new else match.group(0)

    text = re.sub(
        r"(?<![\w/.])((?:src/)?secateurs/)?((?:[a-z_0-9]+/)*[a-z_0-9]+\.(?:py|cpp))\b",
        path,
        text,
    )
    text = re.sub(
        r"(?<![\w/.])tests/([a-z_0-9/]+\.py)\b",
        lambda m: "tests/" + TEST_MOVES.get(m.group(1), m.group(1)),
        text,
    )
    return text


# ---------------------------------------------------------------- targets

members: dict[str, list[Module]] = defaultdict(list)
for relative in [*MAP, *sorted(set(MAP.values()))]:
    pass
order_in_map = {relative: index for index, relative in enumerate(MAP)}
for module in OLD.values():
    if module.package and module.relative not in MAP:
        continue
    members[module.target].append(module)

for module in OLD.values():
    if not module.package and module.target != module.name:
        PATHS[module.relative] = file_of(module.target)
CPP = {}
for cpp in sorted((SRC / PKG).rglob("*.cpp")):
    relative = cpp.relative_to(SRC / PKG).as_posix()
    folder = dotted(str(Path(relative).parent / "__init__.py"))
    if folder in PACKAGES:
        continue
    beside = OLD.get(dotted(relative.replace(".cpp", ".py")))
    base = parents(leader(folder) or (beside.target if beside else folder))[-1]
    if beside:
        new = file_of(beside.target).replace(".py", ".cpp")
    else:
        new = "/".join(base.split(".")[1:]) + "/" + cpp.name
    CPP[relative] = new
    PATHS[relative] = new


def main_member(target: str, found: list[Module]) -> Module:
    stem = target.split(".")[-1]
    same = [m for m in found if m.name.split(".")[-1] == stem]
    exact = [m for m in same if m.name == target]
    ranked = exact or sorted(same, key=lambda m: (m.name.count("."), m.name))
    return (
        ranked[0]
        if ranked
        else sorted(found, key=lambda m: order_in_map.get(m.relative, -1))[0]
    )


def imports_of(module: Module) -> set[str]:
    """Old modules that a module imports, wherever in the file."""
    out = set()
    for node, _ in module.reader.imports:
        if isinstance(node, ast.ImportFrom) and node.module in OLD:
            for alias in node.names:
                found = resolve(node.module, alias.name)
                if found and found[0] in ("sym", "mod"):
                    out.add(found[1])
                out.add(node.module)
        elif isinstance(node, ast.Import):
            out |= {a.name for a in node.names if a.name in OLD}
    return out


def in_order(target: str, found: list[Module]) -> list[Module]:
    """Dependencies first; otherwise as the main member meets them."""
    names = {m.name: m for m in found}
    needs = {
        m.name: sorted(n for n in imports_of(m) if n in names and n != m.name)
        for m in found
    }
    out, seen, path = [], set(), []

    def visit(name):
        if name in path:
            PROBLEMS.append(
                f"{target}: members import each other: {' '.join(path)} {name}"
            )
            return
        if name in seen:
            return
        path.append(name)
        for other in needs[name]:
            visit(other)
        path.pop()
        seen.add(name)
        out.append(names[name])

    main = main_member(target, found)
    # The main member's own tree first, so that it stands as early as it can.
    for module in [
        main,
        *sorted((m for m in found if m is not main), key=lambda m: m.name),
    ]:
        visit(module.name)
    return out


def docstring(module: Module) -> str | None:
    return ast.get_docstring(module.source.tree, clean=True)


def raw_docstring(module: Module) -> str:
    first = module.source.tree.body[0]
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        return module.source.text[
            module.source.start(first) : module.source.end(first)
        ]
    return '""""""'


def head_docstring(target: str, main: Module) -> str:
    """The text of the docstring: of the data, of the package of this name that went, or of the main member."""
    relative = file_of(target)
    if relative in DOCS:
        return '"""' + DOCS[relative] + '"""'
    gone = OLD.get(target)
    if gone is not None and gone.package and docstring(gone) and gone is not main:
        return rewrite_prose(raw_docstring(gone))
    if main.name.split(".")[-1] != target.split(".")[-1]:
        # No member has the name of the file: the package of this name that dissolved into it.
        for name in sorted(OLD):
            package = OLD[name]
            if (
                package.package
                and name not in PACKAGES
                and name.split(".")[-1] == target.split(".")[-1]
                and docstring(package)
            ):
                own = {
                    m.target for m in OLD.values() if parents(m.name)[-1:] == [name]
                }
                if own == {target}:
                    return rewrite_prose(raw_docstring(package))
    return rewrite_prose(raw_docstring(main))


def definitions(module: Module) -> int:
    return sum(
        isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))
        for n in module.source.tree.body
    )


def section(module: Module) -> str:
    """The comment that a member's docstring becomes."""
    text = docstring(module)
    key = module.relative
    if key in SECTIONS:
        text = SECTIONS[key]
    elif text is None:
        return ""
    elif definitions(module) <= 1 and "\n\n" not in text and text.count(". ") == 0:
        return ""  # one thing with a docstring of its own
    if not text:
        return ""
    text = rewrite_prose(text)
    out = []
    for paragraph in text.split("\n\n"):
        plain = (
            paragraph.startswith((" ", "*", "-", "|", ">>>", "`", "::"))
            or "\n  " in paragraph
            or "\n*" in paragraph
        )
        lines = (
            listed(paragraph)
            if plain
            else textwrap.wrap(" ".join(paragraph.split()), 97)
        )
        out += [f"# {line}".rstrip() for line in lines] + ["#"]
    return "\n".join(out[:-1]) + "\n\n"


def listed(paragraph: str) -> list[str]:
    """The lines of a list or table, wrapped anew where they are too long for a comment."""
    lines = paragraph.splitlines()
    if max(map(len, lines)) <= 97:
        return lines
    items: list[list[str]] = []
    for line in lines:
        if not items or re.match(r"\s*([*-]|\d+\.)\s", line):
            items.append([line])
        else:
            items[-1].append(line.strip())
    out = []
    for item in items:
        mark = re.match(r"\s*([*-]|\d+\.)\s+", item[0])
        out += textwrap.wrap(
            " ".join(item),
            97,
            subsequent_indent=" " * len(mark.group(0)) if mark else "",
        )
    return out


SECTIONS = load("sections.json", {})


def global_names(module: Module) -> dict[str, tuple]:
    return module.names


def same_statement(a: Module, b: Module, name: str) -> bool:
    """Whether two members define a name in the same words (and the words mean the same)."""
    first, second = (
        [s for s in m.source.tree.body if name in bound_by(s)] for m in (a, b)
    )
    if len(first) != 1 or len(second) != 1:
        return False
    if ast.dump(first[0]) != ast.dump(second[0]):
        return False
    for node in ast.walk(first[0]):
        if isinstance(node, ast.Name):
            x, y = a.names.get(node.id), b.names.get(node.id)
            if x is None and y is None:
                continue
            if x == ("def",) and y == ("def",):
                if node.id != name and not same_statement(a, b, node.id):
                    return False
            elif origin(a, node.id) != origin(b, node.id):
                return False
    return True


def origin(module: Module, name: str):
    known = module.names.get(name)
    if known is None:
        return None
    if known[0] == "def":
        return ("sym", module.name, name)
    if known[0] == "module":
        return ("mod", known[1])
    return resolve(known[1], known[2]) or ("ext", known[1], known[2])


def bound_by(statement) -> set[str]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    out = set()
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            out |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
    elif isinstance(statement, ast.AnnAssign) and isinstance(
        statement.target, ast.Name
    ):
        out.add(statement.target.id)
    elif isinstance(statement, (ast.For, ast.With, ast.If, ast.Try)):
        for n in ast.walk(statement):
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
                out.add(n.id)
    return out


def collisions(target: str, found: list[Module]):
    """Names that mean two things in one file. Returns ({module: {names to drop}}, {module: aliases})."""
    drop: dict[str, set[str]] = defaultdict(set)
    aliases: dict[str, dict[str, dict[str, str]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    meaning: dict[str, tuple] = {}
    for module in found:  # definitions first: they keep their names
        for name, known in module.names.items():
            if known != ("def",):
                continue
            new = final(module.name, name)
            if new in meaning:
                other = OLD[meaning[new][1]]
                if name in DROPS.get(module.name, ()):
                    drop[module.name].add(name)
                    continue
                if new in DROPS.get(other.name, ()):
                    drop[other.name].add(new)
                    meaning[new] = ("sym", module.name, name)
                    continue
                if (
                    final(other.name, name) == new
                    and final(module.name, name) == name
                    and same_statement(other, module, name)
                ):
                    drop[module.name].add(name)
                else:
                    PROBLEMS.append(
                        f"collision in {file_of(target)}: {new}: {other.relative} and {module.relative}"
                    )
                continue
            meaning[new] = ("sym", module.name, name)
    for module in found:
        for name, known in module.names.items():
            if known == ("def",):
                continue
            if known[0] == "module":
                what, local = ("mod", known[1]), name
            elif known[1] and known[1].split(".")[0] == PKG:
                where, new, was = place(target, known[1], known[2])
                if where == target or (
                    was and was[0] == "mod" and f"{where}.{new}" == target
                ):
                    continue
                local = name if known[2] != name else new
                what = was or ("ext", where, new)
                if was and was[0] == "mod":
                    what = ("mod", f"{where}.{new}")
                    if not used(module, name):
                        continue
            else:
                what, local, where, new = (
                    ("ext", known[1], known[2]),
                    name,
                    known[1],
                    known[2],
                )
            if local in meaning and meaning[local] != what:
                wanted = RENAMES.get(module.name, {}).get(local)
                if not wanted:
                    PROBLEMS.append(
                        f"collision in {file_of(target)}: {local} is {meaning[local]} and, in {module.relative}, {what}"
                    )
                    continue
                aliases[module.name][where][local] = wanted
                meaning[wanted] = what
                continue
            if local in BUILTINS:
                pass
            meaning.setdefault(local, what)
    # a name of one member that another member means as a builtin
    for module in found:
        for node, name, scope in module.reader.uses:
            if (
                name in BUILTINS
                and name in meaning
                and module.reader.home(name, scope) is None
            ):
                PROBLEMS.append(
                    f"collision in {file_of(target)}: {name} is the builtin in {module.relative}:{node.lineno}, and {meaning[name]}"
                )
                break
    return drop, aliases


def used(module: Module, name: str) -> bool:
    """Whether a top name of a module is used in it at all (an import for its effect is not)."""
    return any(
        n == name and not isinstance(node.ctx, ast.Store)
        for node, n, _ in module.reader.uses
    )


def without_effects(parts):
    """Imports of a module for its effect are not needed where something is imported from it."""
    sources = {
        where
        for where, _, _, comment in parts
        if not ("noqa" in comment and "F401" in comment)
    }
    out = []
    for where, name, asname, comment in parts:
        if "noqa" in comment and "F401" in comment and f"{where}.{name}" in sources:
            continue
        if (where, name, asname, comment) not in out:
            out.append((where, name, asname, comment))
    return out


def drop_statements(rewriter: Rewriter, names: set[str]):
    text = rewriter.text
    for statement in text.tree.body:
        if bound_by(statement) & names:
            first = min(
                [
                    statement.lineno,
                    *(d.lineno for d in getattr(statement, "decorator_list", ())),
                ]
            )
            number = first - 2
            while number >= 0 and text.lines[number].startswith("#"):
                number -= 1
            end = statement.end_lineno
            # the docstring below an assignment
            index = text.tree.body.index(statement)
            if isinstance(statement, (ast.Assign, ast.AnnAssign)) and index + 1 < len(
                text.tree.body
            ):
                following = text.tree.body[index + 1]
                if isinstance(following, ast.Expr) and isinstance(
                    following.value, ast.Constant
                ):
                    end = following.end_lineno
            rewriter.cuts.append((text.starts[number + 1], text.starts[end]))


def join(target: str, found: list[Module]) -> str:
    ordered = in_order(target, found)
    main = main_member(target, ordered)
    drop, aliases = collisions(target, ordered)
    top, checked, bodies = [], [], []
    doc = head_docstring(target, main)
    for module in ordered:
        rewriter = Rewriter(
            module, target, whole=False, aliases=aliases.get(module.name)
        )
        drop_statements(rewriter, drop.get(module.name, set()))
        body = rewriter.body()
        top += rewriter.top
        checked += rewriter.checked
        if body.strip():
            took = module is main and head_docstring(target, main) == rewrite_prose(
                raw_docstring(main)
            )
            bodies.append(
                ("" if took or len(ordered) == 1 else section(module)) + body
            )
    lines = [doc, ""]
    commented = [each for each in top if each[0] == "#"]
    top = without_effects(best_sources([each for each in top if each[0] != "#"]))
    futures = [each for each in top if each[0] == "__future__"]
    plain = [each for each in top if each[0] != "__future__"]
    lines += import_lines(futures)
    lines += import_lines(plain)
    for _, comment, kept, tail in commented:
        lines += [comment, *import_lines([(*each, tail) for each in kept])]
    have = {(w, n, a) for w, n, a, _ in top}
    checked = [each for each in checked if each[:3] not in have]
    if checked:
        if not any(each[:2] == ("typing", "TYPE_CHECKING") for each in top):
            lines.append("from typing import TYPE_CHECKING")
        lines += [
            "",
            "if TYPE_CHECKING:",
            *("    " + line for line in import_lines(checked)),
        ]
    return "\n".join(lines) + "\n\n\n" + "\n\n\n".join(bodies) + "\n"


def best_sources(parts):
    """One source for a name: of two places the shorter (a room's face rather than its module)."""
    out, seen = [], {}
    for where, name, asname, comment in parts:
        local = asname or name
        if where is None or not (where or "").startswith(PKG) or comment:
            out.append((where, name, asname, comment))
            continue
        if local in seen:
            index = seen[local]
            if len(where) < len(out[index][0]):
                out[index] = (where, name, asname, comment)
            continue
        seen[local] = len(out)
        out.append((where, name, asname, comment))
    return out


# ---------------------------------------------------------------- __init__ files


def relative_tables(text: str, package: str) -> str:
    """Tables of lazy names relative to the package: {"keeping.row": "Row", ...} or {"Row": "keeping.row"}."""
    tree = ast.parse(text)
    source = Text(text)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Dict) or not node.keys:
            continue
        keys = [k.value if isinstance(k, ast.Constant) else None for k in node.keys]
        values = [
            v.value if isinstance(v, ast.Constant) else None for v in node.values
        ]
        if not all(isinstance(x, str) for x in [*keys, *values]):
            continue

        def old(x):
            return x and f"{package}.{x}" in OLD and not OLD[f"{package}.{x}"].package

        if all(old(k) for k in keys):
            grouped: dict[str, list[str]] = {}
            for k, v in zip(keys, values, strict=True):
                for name in v.split():
                    where, new, _ = place(None, f"{package}.{k}", name)
                    grouped.setdefault(where.removeprefix(package + "."), []).append(
                        name
                    )
            body = "".join(
                f'    "{k}": "{" ".join(sorted(v))}",\n' for k, v in grouped.items()
            )
            source.edit(source.start(node), source.end(node), "{\n" + body + "}")
        elif all(old(v) for v in values):
            for k, v in zip(node.keys, node.values, strict=True):
                where, _, _ = place(None, f"{package}.{v.value}", k.value)
                source.edit(
                    source.start(v),
                    source.end(v),
                    f'"{where.removeprefix(package + ".")}"',
                )
        elif all(str(v).startswith(PKG + ".") and str(v) in OLD for v in values):
            for k, v in zip(node.keys, node.values, strict=True):
                where, _, _ = place(None, v.value, k.value)
                source.edit(source.start(v), source.end(v), f'"{where}"')
    return source.done()


def face(package: str) -> str:
    """The new __init__ of a package that stays or begins."""
    module = OLD.get(package)
    relative = "/".join(package.split(".")[1:]) + "/__init__.py"
    if module is None or not module.package:
        got = GETS.get(package, {})
        doc = DOCS.get(relative, "")
        if not doc:
            PROBLEMS.append(f"docs.json has no docstring for {relative}")
        out = f'"""{doc}"""\n'
        if got and f"{PKG}.lazy" in OLD:
            parts = [
                (
                    symbol_target(f),
                    final(f[1], f[2]),
                    n if n != final(f[1], f[2]) else None,
                    "",
                )
                for n, f in got.items()
            ]
            out += "\nfrom typing import TYPE_CHECKING\n\nfrom secateurs.lazy import open_on_first_use\n\nif TYPE_CHECKING:\n"
            out += "".join(f"    {line}\n" for line in import_lines(parts))
            out += "\n__all__ = " + as_list(got) + "\n\nopen_on_first_use(__name__)\n"
        elif got:
            parts = [
                (
                    symbol_target(f),
                    final(f[1], f[2]),
                    n if n != final(f[1], f[2]) else None,
                    "",
                )
                for n, f in got.items()
            ]
            out += (
                "\n"
                + "\n".join(import_lines(parts))
                + "\n\n__all__ = "
                + as_list(got)
                + "\n"
            )
        return out
    if module.name == PKG:
        text = relative_tables(module.source.text, PKG)
        for room in ("certificates", "channels"):
            if (
                room in {p.split(".")[1] for p in PACKAGES if "." in p}
                and f'"{room}",' not in text
            ):
                text = text.replace(
                    "_MODULES = (\n", f'_MODULES = (\n    "{room}",\n'
                )
                text = text.replace(
                    "    from secateurs import (\n",
                    f"    from secateurs import (\n        {room},\n",
                )
                text = text.replace("__all__ = [\n", f'__all__ = [\n    "{room}",\n')
        fresh = Module.__new__(Module)
        module.source = Text(text)
        module.reader = Reader(module.source.tree)
        rewriter = Rewriter(module, PKG, whole=True)
        return module.source.done()
    lazy = any(
        isinstance(n, (ast.FunctionDef,)) and n.name == "__getattr__"
        for n in module.source.tree.body
    )
    leaves, gets = LEAVES[package], GETS.get(package, {})
    if lazy:
        module.source = Text(relative_tables(module.source.text, package))
        module.reader = Reader(module.source.tree)
        if leaves or gets:
            PROBLEMS.append(
                f"{relative}: lazy, and {sorted(leaves)} leave it, {sorted(gets)} come"
            )
        Rewriter(module, package, whole=True)
        return module.source.done()
    # eager: the imports anew, the rest as it is
    rewriter = Rewriter(module, package, whole=False)
    body = rewriter.body()
    doc = (
        '"""' + DOCS[relative] + '"""'
        if relative in DOCS
        else rewrite_prose(raw_docstring(module))
    )
    top = [
        each
        for each in rewriter.top
        if each[0] == "#" or (each[2] or each[1]) not in leaves
    ]
    commented = [each for each in top if each[0] == "#"]
    top = [each for each in top if each[0] != "#"]
    come = [
        (
            symbol_target(f),
            final(f[1], f[2]),
            n if n != final(f[1], f[2]) else None,
            "",
        )
        for n, f in gets.items()
    ]
    checked = [
        each for each in rewriter.checked if (each[2] or each[1]) not in leaves
    ]
    if checked:
        checked += come
    else:
        top += come
    lines = [doc, "", *import_lines(top)]
    for _, comment, kept, tail in commented:
        lines += [comment, *import_lines([(*each, tail) for each in kept])]
    if checked:
        lines += [
            "",
            "if TYPE_CHECKING:",
            *("    " + line for line in import_lines(checked)),
        ]
    listed = [
        n
        for n in module.source.tree.body
        if isinstance(n, ast.Assign)
        and isinstance(n.targets[0], ast.Name)
        and n.targets[0].id == "__all__"
        and isinstance(n.value, ast.List)
    ]
    if listed:
        old_names = [e.value for e in listed[0].value.elts]
        names = []
        for name in old_names:
            if name in leaves:
                continue
            known = module.names.get(name)
            if known and known[0] == "from":
                found = resolve(known[1], known[2])
                if found and found[0] == "mod":
                    name = (leader(found[1]) or found[1]).split(".")[-1]
            names.append(name)
        names = [*dict.fromkeys([*names, *gets])]
        text = Text(body) if body.strip() else None
        for node in text.tree.body:
            if (
                isinstance(node, ast.Assign)
                and ast.unparse(node.targets[0]) == "__all__"
            ):
                text.edit(
                    text.start(node.value), text.end(node.value), as_list(names)
                )
        body = text.done()
    return (
        "\n".join(lines).rstrip()
        + "\n"
        + ("\n" + body + "\n" if body.strip() else "")
    )


def as_list(names) -> str:
    def rank(name):
        return (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)

    return "[\n" + "".join(f'    "{n}",\n' for n in sorted(names, key=rank)) + "]"


# ---------------------------------------------------------------- tests

TESTS = ROOT / "tests"
TEST_MOVES: dict[str, str] = {}


def test_moves():
    """Where test files go: `tests/A/test_X.py` where one file tests the module A/X.py,
    `tests/A/X/test_*.py` where several do."""
    by_target: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        relative = path.relative_to(TESTS)
        subject = dotted(
            str(relative.parent / (relative.stem.removeprefix("test_") + ".py"))
        )
        subject = subject.replace("/", ".")
        if relative.parts[0] == "docs" or subject not in OLD:
            continue
        if OLD[subject].package:
            if subject in PACKAGES:
                continue
            new = leader(subject)
            if new is None:
                inner = sorted(
                    {
                        m.target
                        for m in OLD.values()
                        if below(m.name, subject) and not m.package
                    }
                )
                new = inner[0]
                NOTES.append(
                    f"{relative}: its package went, taken for {new} of {inner}"
                )
        else:
            new = OLD[subject].target
        if relative.as_posix() not in HELPERS:
            by_target[new].append(relative.as_posix())
    for target, files in sorted(by_target.items()):
        parts = target.split(".")[1:]
        for each in files:
            stem = Path(each).stem.removeprefix("test_")
            single = "/".join([*parts[:-1], f"test_{parts[-1]}.py"])
            if len(files) == 1:
                new = single
            else:
                new = "/".join([*parts, f"test_{stem}.py"])
                if new in TEST_MOVES.values():
                    new = "/".join(
                        [*parts, f"test_{Path(each).parent.name}_{stem}.py"]
                    )
            if new != each:
                TEST_MOVES[each] = new
    for old, new in HELPERS.items():
        if (TESTS / old).exists():
            TEST_MOVES[old] = new


test_moves()
TEST_MODULES = {
    old.removesuffix(".py").replace("/", "."): new.removesuffix(".py").replace(
        "/", "."
    )
    for old, new in TEST_MOVES.items()
}


def rewrite_tests(text: str) -> str:
    """Imports of the tests' own helpers."""

    def whole(match):
        lead, word, name = match.groups()
        return f"{lead}{word} {TEST_MODULES.get(name, name)}"

    def parted(match):
        lead, head, names = match.groups()
        kept, moved = [], []
        for name in names.split(","):
            plain, _, alias = name.strip().partition(" as ")
            new = TEST_MODULES.get(f"{head}.{plain}")
            if new is None:
                kept.append(name.strip())
            else:
                new_head, _, tail = new.rpartition(".")
                alias = alias or (plain if tail != plain else "")
                moved.append(
                    f"{lead}from {new_head} import {tail}"
                    + (f" as {alias}" if alias else "")
                )
        if not moved:
            return match.group(0)
        return "\n".join(
            [
                *moved,
                *([f"{lead}from {head} import {', '.join(kept)}"] if kept else []),
            ]
        )

    text = re.sub(
        r"^([ \t]*)from ([\w.]+) import ([\w, ]+)$", parted, text, flags=re.M
    )
    text = re.sub(r"^([ \t]*)(from|import) ([\w.]+)\b", whole, text, flags=re.M)
    return text


# ---------------------------------------------------------------- all of it

written: dict[Path, str] = {}
gone: list[Path] = [m.path for m in OLD.values()]

for target, found in sorted(members.items()):
    single = len(found) == 1
    if single and found[0].target == found[0].name:
        module = found[0]
        Rewriter(module, target, whole=True)
        text = module.source.done()
        if file_of(target) in DOCS:
            text = text.replace(
                raw_docstring(module), '"""' + DOCS[file_of(target)] + '"""', 1
            )
        written[SRC / PKG / file_of(target)] = text
    else:
        written[SRC / PKG / file_of(target)] = join(target, found)
for package in sorted(PACKAGES):
    relative = "/".join([*package.split(".")[1:], "__init__.py"])
    written[SRC / PKG / relative] = face(package)

others = []
for folder in ("tests", "benchmarks", "examples", "tools", "docs"):
    others += sorted((ROOT / folder).rglob("*.py"))
for path in others:
    if "__pycache__" in path.parts or ".venv" in path.parts:
        continue
    module = Module(path, None)
    Rewriter(module, None, whole=True)
    text = module.source.done()
    new = path
    if path.is_relative_to(TESTS):
        text = rewrite_tests(text)
        relative = path.relative_to(TESTS).as_posix()
        if relative in TEST_MOVES:
            new = TESTS / TEST_MOVES[relative]
            old_depth, new_depth = (
                relative.count("/"),
                TEST_MOVES[relative].count("/"),
            )
            if old_depth != new_depth:
                text = re.sub(
                    r"Path\(__file__\)\.parents\[(\d+)\]",
                    lambda m: (
                        f"Path(__file__).parents[{int(m.group(1)) + new_depth - old_depth}]"
                    ),
                    text,
                )
            gone.append(path)
    written[new] = text
# Fixtures of a folder follow the tests that left it for another room.
if (TESTS / "paths" / "conftest.py").exists():
    for room in ("certificates", "channels"):
        if any(new.startswith(f"{room}/") for new in TEST_MOVES.values()):
            written[TESTS / room / "conftest.py"] = written[
                TESTS / "paths" / "conftest.py"
            ]
for pattern in (
    "docs/**/*.md",
    "*.md",
    "Makefile",
    "pyproject.toml",
    "benchmarks/*.md",
):
    for path in sorted(ROOT.glob(pattern)):
        if path.name == "CHANGELOG.md":
            continue
        text = path.read_text()
        new = rewrite_prose(text)
        if path.suffix == ".md":

            def code(match):
                inner = match.group(2)
                try:
                    module = Module.__new__(Module)
                    fake = Path("/tmp/_block.py")
                    fake.write_text(inner)
                    module = Module(fake, None)
                    module.path = path
                    Rewriter(module, None, whole=True)
                    return match.group(1) + module.source.done() + match.group(3)
                except SyntaxError:
                    return match.group(0)

            new = re.sub(r"(```python[^\n]*\n)(.*?)(```)", code, new, flags=re.S)
        if new != text:
            written[path] = new

design = ROOT / "docs" / "design.md"
if (HERE / "design_files.md").exists() and design.exists():
    text = written.get(design, design.read_text())
    written[design] = re.sub(
        r"## Files \(.*?(?=## Decisions already taken)",
        lambda m: (HERE / "design_files.md").read_text(),
        text,
        flags=re.S,
    )

for relative, pairs in EDITS.items():
    path = ROOT / relative
    text = written.get(path)
    if text is None:
        if not path.exists():
            NOTES.append(f"edits.json: no {relative}")
            continue
        text = path.read_text()
    for old, new in pairs:
        if old not in text:
            if new not in text:
                NOTES.append(f"edits.json: {relative} has no {old[:60]!r}")
            continue
        text = text.replace(old, new)
    written[path] = text

COMES_AFTER = {"certificates": "graph", "channels": "masks", "papers": "report"}
RULE = '''def test_a_test_lies_where_its_module_lies(test):
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
'''


def house(text: str) -> str:
    """The order of the new rooms; no counts of files; where tests lie."""
    source = Text(text)
    rooms = {t.split(".")[1] for t in TARGETS if "." in t}
    found = next(
        n
        for n in source.tree.body
        if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "ORDER"
    )
    order = [
        n.value
        for n in ast.walk(found.value)
        if isinstance(n, ast.Constant) and isinstance(n.value, str)
    ]
    order.sort(key=lambda name: source.text.index(f'"{name}"', source.start(found)))
    for name, below_it in COMES_AFTER.items():
        if name not in order:
            order.insert(order.index(below_it) + 1, name)
    order = [name for name in order if name in rooms]
    missing = rooms - set(order)
    if missing:
        PROBLEMS.append(f"rooms without a place in ORDER: {sorted(missing)}")
    cut = [0, order.index("graph"), order.index("optim"), len(order)]
    lines = [order[a:b] for a, b in zip(cut, cut[1:])]
    for node in source.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ORDER":
            new = (
                "(\n"
                + "".join(f"    *({', '.join(map(repr, line))}),\n" for line in lines)
                + ")"
            )
            source.edit(
                source.start(node.value),
                source.end(node.value),
                new.replace("'", '"'),
            )
        elif isinstance(node, ast.FunctionDef):
            start, end = (
                source.starts[node.lineno - 1],
                source.starts[node.end_lineno],
            )
            if node.name in ("test_no_folder_is_a_heap",):
                source.edit(start, end, "")
            elif node.name == "test_a_test_lies_where_its_module_lies":
                source.edit(start, end, RULE)
    return source.done()


HOUSE = TESTS / "test_house.py"
if HOUSE in written:
    written[HOUSE] = house(written[HOUSE])

for each in PROBLEMS:
    print("PROBLEM", each)
if "--dry" in sys.argv:
    for each in NOTES:
        print("note", each)
    sys.exit(1 if PROBLEMS else 0)

for path in gone:
    if path.exists():
        path.unlink()
for old, new in CPP.items():
    destination = SRC / PKG / new
    destination.parent.mkdir(parents=True, exist_ok=True)
    (SRC / PKG / old).rename(destination)
for path, text in written.items():
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
# tests are packages, so that two files may have one name
for folder in {(TESTS / new).parent for new in TEST_MOVES.values()}:
    while folder != TESTS:
        (folder / "__init__.py").touch()
        folder = folder.parent
# folders that are empty now
for top in (SRC / PKG, TESTS):
    for folder in sorted((p for p in top.rglob("*") if p.is_dir()), reverse=True):
        if folder.name == "__pycache__":
            continue
        left = [p for p in folder.iterdir() if p.name != "__pycache__"]
        if all(p.name == "__init__.py" for p in left) and (
            top == TESTS
            and (folder / "__init__.py").exists()
            and not (folder / "__init__.py").read_text().strip()
            or not left
        ):
            subprocess.run(["rm", "-rf", str(folder)], check=True)
for each in NOTES:
    print("note", each)

BIN = ROOT / ".venv" / "bin"  # where ruff lies
if "--no-format" not in sys.argv:
    folders = ["src", "tests", "benchmarks", "tools", "examples"]
    run = lambda *a: subprocess.run([str(BIN / "ruff"), *a, *folders], cwd=ROOT)
    quiet = lambda *a: subprocess.run(
        [str(BIN / "ruff"), *a, *folders], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    for _ in range(2):
        quiet("check", "--fix", "-q", "--exit-zero")
        quiet("format", "-q")
    run("check", "--output-format", "concise")
