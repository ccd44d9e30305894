"""Cells of tables that other programs read: a spreadsheet computes what looks like a formula, and
Markdown is rendered as HTML. Text from foreign files (see `foreign`) goes through these functions.
"""

import csv
import re
from collections.abc import Iterable
from typing import TextIO

from secateurs.base.foreign import visible

_FORMULA = tuple("=+-@＝＋－＠")
_NUMBER = re.compile(r"[+-]?(\d[\d,_]*\.?\d*|\.\d+)([eE][+-]?\d+)? ?[%×]?|[+-](inf|nan)")

_MARKDOWN = str.maketrans(
    {
        "&": "&amp;",
        "<": "&lt;",
        ">": "&gt;",
        "\n": " ",
        "\r": " ",
        **{sign: f"\\{sign}" for sign in "\\|`[]"},
    }
)


def cell(value: object) -> object:
    """A cell of a spreadsheet: text that would be computed gets an apostrophe in front, which
    spreadsheets take for "this is text"; numbers stay numbers, negative ones too.

    >>> cell("=1+1"), cell("-1.5"), cell(-1.5), cell("-1+1"), cell("+0.5 %")
    ("'=1+1", '-1.5', -1.5, "'-1+1", '+0.5 %')
    """
    if not isinstance(value, str):
        return value
    # Some spreadsheets leave out blanks before they look at the first sign.
    bare = value.lstrip()
    if value[:1] in ("\t", "\r", "\n") or bare.startswith(_FORMULA):
        # A dash alone, as for a missing value, computes nothing.
        return value if len(bare) == 1 or _NUMBER.fullmatch(bare) else f"'{value}"
    return value


def write_csv(file: TextIO, lines: Iterable[Iterable[object]], *, end: str = "\n") -> None:
    """Write lines of cells, each as `cell` has it."""
    # csv would end lines with \r\n by itself, which version control shows as a change of
    # every line.
    writer = csv.writer(file, lineterminator=end)
    writer.writerows([cell(value) for value in line] for line in lines)


def markdown_cell(text: str) -> str:
    """A cell of a Markdown table: text that begins no column, no line, no link and no HTML.

    >>> print(markdown_cell("<script>|[x](y)"))
    &lt;script&gt;\\|\\[x\\](y)
    """
    return visible(text.translate(_MARKDOWN))
