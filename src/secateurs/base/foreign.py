"""Text from foreign files on its way to a terminal.

A name in a checkpoint, a label in a study's store or a note of a sparse file is whatever its author
wrote. Written raw, it can move the cursor and recolour a terminal. Everything that is written there
goes through these functions, and what is written into tables of other programs through those of
`cells` (a test reads the source).
"""

import re

# Controls of a terminal but tab and line feed; signs that turn the direction of what follows, or
# begin a line where none is seen; halves of characters, which no file can take.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
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
