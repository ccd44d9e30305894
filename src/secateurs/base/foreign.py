"""Text from foreign files on its way to a terminal, a spreadsheet or Markdown.

A name in a checkpoint, a label in a study's store or a note of a sparse file is whatever its author
wrote. Written raw, it can move the cursor and recolour a terminal, be computed as a formula by a
spreadsheet, or be run where a table is rendered as HTML. Each kind of sink has its one function
here, and everything that is written goes through it (a test reads the source).
"""

import csv
import re
from collections.abc import Iterable
from typing import TextIO

# Controls of a terminal but tab and line feed; signs that turn the direction of what follows, or
# begin a line where none is seen; halves of characters, which no file can take.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)

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


def visible(text: str) -> str:
    """The text with every control character as one sign that can be seen; lines stay lines.

    >>> visible("net\\x1b[2J\\r")
    'net␛[2J␍'
    """
    return _UNSEEN.sub(_sign, text)


def one_line(text: str) -> str:
    """The text of `visible` in one line, for places where another line would look like another
    entry.
    """
    return visible(text).replace("\n", "␊").replace("\t", "␉")


def _sign(found: re.Match[str]) -> str:
    code = ord(found.group())
    if code == 0x7F:
        return "␡"
    # Unicode has pictures of the first 32 only.
    return chr(0x2400 + code) if code < 32 else "\ufffd"


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


def markdown(text: str) -> str:
    """A cell of a Markdown table: text that begins no column, no line, no link and no HTML.

    >>> print(markdown("<script>|[x](y)"))
    &lt;script&gt;\\|\\[x\\](y)
    """
    return visible(text.translate(_MARKDOWN))
