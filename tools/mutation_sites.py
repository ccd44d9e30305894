"""Where one operator of the source can be exchanged for another: comparisons and arithmetic."""

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# An operator and what it is exchanged for. `<` becomes `<=` (the tie) or `>=` (the sense).
EXCHANGES: dict[type[ast.AST], tuple[str, tuple[str, ...]]] = {
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
    ast.Add: ("+", ("-",)),
    ast.Sub: ("-", ("+",)),
    ast.Mult: ("*", ("/",)),
    ast.Div: ("/", ("*",)),
    ast.FloorDiv: ("//", ("*",)),
    ast.Mod: ("%", ("*",)),
    ast.Pow: ("**", ("*",)),
    ast.MatMult: ("@", ("*",)),
}


@dataclass(frozen=True, kw_only=True)
class Site:
    """One operator: the bytes [start, end) of a file, and the function it is in."""

    path: str
    line: int
    start: int
    end: int
    old: str
    choices: tuple[str, ...]
    function: str  # its qualified name, as the code object has it; "" outside

    def mutated(self, source: bytes, new: str) -> bytes:
        return source[: self.start] + new.encode() + source[self.end :]


def sites(root: Path) -> list[Site]:
    """Every operator of every file under `root`, in the order of paths and lines."""
    found = []
    for path in sorted(root.rglob("*.py")):
        found += sites_of(path.read_bytes(), str(path.relative_to(root)))
    return found


def sites_of(source: bytes, path: str) -> list[Site]:
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for left, operator, right, function in _operations(ast.parse(source), ""):
        old, choices = EXCHANGES[type(operator)]
        begin = starts[left.end_lineno - 1] + left.end_col_offset
        between = source[begin : starts[right.lineno - 1] + right.col_offset]
        at = _position(between, old)
        if at is None:
            continue
        start, end = begin + at[0], begin + at[1]
        line = source.count(b"\n", 0, start) + 1
        found.append(
            Site(
                path=path,
                line=line,
                start=start,
                end=end,
                old=old,
                choices=choices,
                function=function,
            )
        )
    return found


def draw(places: list[Site], count: int, generator: random.Random) -> list[tuple[Site, str]]:
    """`count` different sites, each with one of its exchanges."""
    chosen = generator.sample(places, min(count, len(places)))
    return [(site, generator.choice(site.choices)) for site in chosen]


def _operations(
    node: ast.AST, function: str, within: str = ""
) -> Iterator[tuple[ast.expr, ast.AST, ast.expr, str]]:
    """(left, operator, right, the function around it); `within` is the prefix of names."""
    if isinstance(node, ast.Compare):
        lefts = [node.left, *node.comparators]
        for left, operator, right in zip(lefts, node.ops, node.comparators, strict=False):
            yield left, operator, right, function
    elif isinstance(node, ast.BinOp) and _is_arithmetic(node.op, node.left, node.right):
        yield node.left, node.op, node.right, function
    elif isinstance(node, ast.AugAssign) and _is_arithmetic(node.op, node.target, node.value):
        yield node.target, node.op, node.value, function
    for name, field in ast.iter_fields(node):
        # Annotations are not computed with.
        if name in {"annotation", "returns"}:
            continue
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.AST):
                yield from _operations(child, *_names(child, function, within))


def _names(node: ast.AST, function: str, within: str) -> tuple[str, str]:
    """The function that a node is in, and the prefix of the names in it."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return within + node.name, f"{within}{node.name}.<locals>."
    if isinstance(node, ast.ClassDef):
        return function, f"{within}{node.name}."
    return function, within


def _is_arithmetic(operator: ast.AST, *sides: ast.expr) -> bool:
    """Text is added and formatted with the same operators; that is not meant."""
    text = any(
        isinstance(s, ast.JoinedStr) or (isinstance(s, ast.Constant) and isinstance(s.value, str))
        for s in sides
    )
    return type(operator) in EXCHANGES and not text


def _position(between: bytes, old: str) -> tuple[int, int] | None:
    """Where the operator is in the text between its operands (brackets, comments, breaks)."""
    # A comment may hold any sign: its characters are blanked before the search.
    plain = re.sub(rb"#[^\n]*", lambda m: b" " * len(m[0]), between)
    words = rb"\s+".join(re.escape(word.encode()) for word in old.split())
    found = re.search(words, plain)
    return found.span() if found else None
