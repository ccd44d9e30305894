"""Our docstrings are plain text with backticks; Sphinx reads reStructuredText. This translates."""

import re
from itertools import groupby

LITERAL = re.compile(r"``([^`]+)``|`([^`]+)`")
SPECIAL = re.compile(r"[*|\\]|(?<=\w)_(?!\w)")


def as_rst(app, what, name, obj, options, lines: list[str]) -> None:
    """Rewrite the lines of one docstring in place."""
    lines[:] = translated(lines)


def translated(lines: list[str]) -> list[str]:
    """Examples and drawings stay as they are; in prose, signs with a meaning are escaped."""
    done: list[str] = []
    kinds = zip(lines, kept(lines), strict=True)
    for as_it_is, run in groupby(kinds, key=lambda pair: pair[1]):
        text = "\n".join(line for line, _ in run)
        done += (text if as_it_is else words(text)).split("\n")
    return done


def kept(lines: list[str]) -> list[bool]:
    """Which lines are code: examples to the next empty line, and what is indented below `::`."""
    marks, example, drawing = [], False, False
    for line in lines:
        empty = not line.strip()
        drawing = drawing and (empty or line.startswith(" "))
        example = not empty and (example or line.lstrip().startswith(">>>"))
        marks.append(example or drawing)
        drawing = drawing or line.endswith("::")
    return marks


def words(text: str) -> str:
    """Code between backticks becomes literal; a star, a bar or a last underscore is only a sign.

    >>> print(words("the product |w| of `hold`, not w_ * 2"))
    the product \\|w\\| of ``hold``, not w\\_ \\* 2
    """
    parts, at = [], 0
    for literal in LITERAL.finditer(text):
        parts += [escaped(text[at : literal.start()]), f"``{literal[1] or literal[2]}``"]
        at = literal.end()
        parts += ["\\ "] * text[at : at + 1].isalnum()  # a plural: `Net`s
    whole = "".join([*parts, escaped(text[at:])])
    return re.sub(r"^(\s*)\\\* ", r"\1* ", whole, flags=re.M)  # the star of a list


def escaped(text: str) -> str:
    """The text with a backslash before each sign that has a meaning."""
    return SPECIAL.sub(lambda sign: "\\" + sign[0], text)
