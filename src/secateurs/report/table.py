"""A table of text, and the ways to write it: HTML, CSV, Markdown, LaTeX."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from secateurs import foreign

LATEX = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        "\\": "\\textbackslash{}",
        "~": "\\textasciitilde{}",
        "^": "\\textasciicircum{}",
        "<": "$<$",
        ">": "$>$",
        "|": "$|$",
        "×": "$\\times$",
        "≤": "$\\le$",
        "≥": "$\\ge$",
        "λ": "$\\lambda$",
        "∅": "$\\emptyset$",
        "ℓ": "$\\ell$",
        "∞": "$\\infty$",
        "–": "--",
    }
)
"""Signs that LaTeX takes for orders, and those that its usual fonts lack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Column names and cells, all of them text.

    >>> print(Table(columns=("a", "b"), cells=(("1", "2"),)).markdown())
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """

    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]

    def html(self, *, most: int = 400) -> str:
        """The first lines of the table for a page; every cell is escaped."""
        head = "".join(
            f'<th scope="col">{escape(name)}</th>' for name in self.columns
        )
        body = "".join(f"<tr>{_cells(row)}</tr>" for row in self.cells[:most])
        # The page stays light, and says where the rest is: the CSV file has every line.
        left = len(self.cells) - most
        rest = f"<p>{left:,} more lines are in the CSV file.</p>" if left > 0 else ""
        return (
            f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>{rest}"
        )

    def csv(self) -> str:
        """The table as CSV text."""
        text = io.StringIO()
        foreign.write_csv(text, [self.columns, *self.cells])
        return text.getvalue()

    def markdown(self) -> str:
        """The table as Markdown text."""
        lines = [self.columns, tuple("---" for _ in self.columns), *self.cells]
        return "\n".join(
            "| " + " | ".join(map(foreign.markdown, line)) + " |" for line in lines
        )

    def latex(self) -> str:
        """The table as LaTeX, with the rules of the package booktabs."""
        lines = [_latex_line(row) for row in self.cells]
        shape = "l" + "r" * (len(self.columns) - 1)
        return "\n".join(
            [
                f"\\begin{{tabular}}{{{shape}}}",
                "\\toprule",
                _latex_line(self.columns),
                "\\midrule",
                *lines,
                "\\bottomrule",
                "\\end{tabular}",
                "",
            ]
        )


def _cells(row: Sequence[str]) -> str:
    """The first cell names its line: readers of screens say it with every number."""
    first = f'<th scope="row">{escape(row[0])}</th>' if row else ""
    return first + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])


def _latex_line(row: Sequence[str]) -> str:
    return " & ".join(cell.translate(LATEX) for cell in row) + " \\\\"
