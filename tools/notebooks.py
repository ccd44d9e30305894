"""A script of examples/ as a notebook, executed.

    python tools/notebooks.py examples/cut_vit.py cut_vit.ipynb

`make docs` calls it for every script, and tutorials link to what it writes. The script stays the
only text: its docstring is the title, what stands above `main` is definitions, and the body of
`main` follows without the function around it, its parameters on top. Cells end at blank lines, and
a comment at the start of one is text above it.
"""

import argparse
import ast
import os
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Cell:
    """A piece of a notebook; `kind` is "markdown" or "code"."""

    kind: str
    source: str


def cells_of(script: str) -> Iterator[Cell]:
    """The cells of a script that ends with `main` and the call of it."""
    tree, lines = ast.parse(script), script.splitlines()
    title, *above, main, _ = tree.body
    if not (isinstance(main, ast.FunctionDef) and main.name == "main" and ast.get_docstring(main)):
        raise SystemExit("an example ends with `main`, which has a docstring, and the call of it.")
    heading, _, text = (ast.get_docstring(tree) or "").partition("\n")
    yield Cell("markdown", f"# {heading.rstrip('.')}\n{text}")
    for piece in pieces(lines, title, above):
        yield from with_text(piece)

    begin, *body = main.body
    names, values = main.args.args, main.args.defaults
    if len(names) != len(values):
        raise SystemExit("`main` of an example is called without arguments: give it defaults.")
    if names:
        told = [ast.get_source_segment(script, value) for value in values]
        given = zip(names, told, strict=True)
        yield Cell("code", "\n".join(f"{name.arg} = {value}" for name, value in given))
    if any(isinstance(node, ast.Return) for part in body[:-1] for node in ast.walk(part)):
        raise SystemExit("`main` of an example returns once, at its end.")
    last = body[-1]
    if isinstance(last, ast.Return) and isinstance(last.value, ast.Name):
        body.pop()  # a result that has a name is there already
    elif isinstance(last, ast.Return):
        lines[last.lineno - 1] = lines[last.lineno - 1].replace("return ", "", 1)
    for piece in pieces(lines, begin, body):
        yield from with_text(piece)


def pieces(lines: list[str], before: ast.stmt, body: Sequence[ast.stmt]) -> Iterator[str]:
    """The text of statements, those together that no blank line divides, and all imports."""
    piece: list[str] = []
    for node in body:
        assert before.end_lineno and node.end_lineno
        between = lines[before.end_lineno : node.lineno - 1]
        imports = all(isinstance(each, ast.Import | ast.ImportFrom) for each in (before, node))
        if "" in between and piece and not imports:
            yield textwrap.dedent("\n".join(piece)).strip("\n")
            piece = []
        piece += lines[before.end_lineno : node.end_lineno]
        before = node
    yield textwrap.dedent("\n".join(piece)).strip("\n")


def with_text(piece: str) -> Iterator[Cell]:
    """A piece of code as a cell; the comment that it begins with is text above."""
    lines = piece.splitlines()
    told = next((n for n, line in enumerate(lines) if not line.startswith("#")), len(lines))
    if told:
        yield Cell("markdown", " ".join(line.removeprefix("#").strip() for line in lines[:told]))
    yield Cell("code", "\n".join(lines[told:]))


def executed(cells: Sequence[Cell], seconds: int = 900) -> Any:
    """The notebook, run where it may write files; a cell that raises is an error."""
    try:
        from nbclient import NotebookClient
        from nbformat import v4
        from traitlets.config import Config
    except ImportError as error:
        raise SystemExit(f"{error}\nA notebook is run by: pip install -e '.[docs]'") from None
    # Of a bar that is not there, with the path of this machine.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:IProgress not found")
    notebook = v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    )
    for number, cell in enumerate(cells):
        new = v4.new_code_cell if cell.kind == "code" else v4.new_markdown_cell
        notebook.cells.append(new(cell.source, id=f"cell-{number}"))
    with tempfile.TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        # Sockets in the folder: no port that others could listen at.
        local = Config(KernelManager={"transport": "ipc", "ip": f"{folder}/kernel"})
        client = NotebookClient(notebook, timeout=seconds, resources=place, config=local)
        client.execute()
    return notebook


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("script", type=Path)
    parser.add_argument("notebook", type=Path)
    asked = parser.parse_args()
    notebook = executed([*cells_of(asked.script.read_text(encoding="utf-8"))])
    import nbformat

    asked.notebook.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, asked.notebook)


if __name__ == "__main__":
    main()
