"""Which shapes a mask may have: single entries, N of M, blocks, kernels, filters, channels."""

import re
from dataclasses import dataclass
from typing import TypeAlias

from secateurs.errors import ArgumentError, UnknownNameError
from secateurs.masks.shapes.grouped import Grouped
from secateurs.masks.shapes.nm import NM
from secateurs.masks.shapes.slices import Channel, Filter, Kernel
from secateurs.masks.shapes.tiles import Block
from secateurs.registry import Registry, unknown


@dataclass(frozen=True, slots=True)
class Unstructured:
    """Every entry for itself."""

    def misfit(self, shape: tuple[int, ...]) -> str:
        """Why the pattern does not fit this shape; empty when it does."""
        return ""

    def __str__(self) -> str:
        return "unstructured"


Pattern: TypeAlias = Unstructured | NM | Grouped

PATTERNS: Registry[Pattern] = Registry("pattern")
"""Patterns by name. Any "N:M" ("1:8") and any block "RxC" ("16x1") is understood besides."""
for _pattern in (
    Unstructured(),
    NM(2, 4),
    Block(4, 4),
    Kernel(),
    Filter(),
    Channel(),
):
    PATTERNS.register(str(_pattern))(_pattern)


def pattern_of(pattern: "str | Pattern") -> Pattern:
    """The pattern a name stands for; a pattern stands for itself.

    >>> pattern_of("1:8"), pattern_of("16x1")
    (NM(n=1, m=8), Block(height=16, width=1))
    """
    if isinstance(pattern, Unstructured | NM | Grouped):
        return pattern
    if not isinstance(pattern, str):
        raise ArgumentError(
            f"{pattern!r} is neither a pattern nor the name of one, such as '2:4'."
        )
    sizes = re.fullmatch(r"(\d{1,4})([:x])(\d{1,4})", pattern)
    if pattern in PATTERNS or not sizes:
        if pattern not in PATTERNS:
            raise UnknownNameError(
                unknown("pattern", pattern, [*PATTERNS.names(), "N:M", "RxC"])
            )
        return PATTERNS[pattern]
    kind: type[NM] | type[Block] = NM if sizes[2] == ":" else Block
    return kind(int(sizes[1]), int(sizes[3]))
