"""What may stand in the header of a file: names, shapes and numbers that can be trusted."""

import math
from typing import TypeGuard

LONGEST_NAME = 1024
"""Characters of a tensor's name."""


_MOST_DIMENSIONS = 32


# Entries of a tensor: no machine holds them, and sums still fit 64 bits.
_LARGEST = 1 << 48


def name_problem(name: object) -> str:
    """What is wrong with the name of a tensor; empty if nothing is."""
    if not isinstance(name, str) or not name or name == "__metadata__":
        return "is no name of a tensor"
    if len(name) > LONGEST_NAME:
        return f"is a name of {len(name)} characters; the most is {LONGEST_NAME}"
    if not name.isprintable():
        return "has characters that cannot be printed"
    # Whoever unpacks tensors into files must not be led out of the folder.
    parts = name.replace("\\", "/").split("/")
    return "is a path out of its folder" if ".." in parts or parts[0] == "" else ""


def is_shape(value: object) -> bool:
    """Whether this is a list of sizes whose product stays below 2^48."""
    # A zero counts as one: it must not hide sizes that no reader could multiply.
    return are_counts(value) and math.prod(max(size, 1) for size in value) <= _LARGEST


def are_counts(value: object) -> TypeGuard[list[int]]:
    """Whether this is a short list of whole numbers from 0 to 2^48."""
    if not isinstance(value, list) or len(value) > _MOST_DIMENSIONS:
        return False
    # `type`, because JSON's true is an int for isinstance.
    return all(type(size) is int and 0 <= size <= _LARGEST for size in value)


def short(name: object) -> str:
    """A name as it can stand in a message."""
    text = repr(name)
    return text if len(text) <= 100 else f"{text[:97]}..."
