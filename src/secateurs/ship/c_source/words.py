"""Small pieces of C, and places in the one array of memory."""

import math

import numpy as np

from secateurs.ship.fast.operations import Shape


def first_fit(taken: list[tuple[int, int, int]], size: int) -> int:
    start = 0
    for at, length, _ in sorted(taken):
        if start + size <= at:
            break
        start = max(start, at + length)
    return start


def number(value: float) -> str:
    """A float that reads back as the same float32."""
    # Nine significant digits bring every float32 back exactly.
    text = f"{float(np.float32(value)):.9g}"
    # `1f` is no C: a float has a point or an exponent.
    return f"{text}f" if any(c in text for c in ".e") else f"{text}.0f"


def shaped(value: str, shape: Shape) -> str:
    if not shape.on:
        return value
    if shape.slope == 0 and shape.cap == math.inf:
        return f"relu({value})"
    # The largest float32 stands for no limit: plain C has no literal for infinity.
    limit = number(min(shape.cap, float(np.finfo(np.float32).max)))
    return f"shaped({value}, {number(shape.slope)}, {limit})"


def total(first: list[str], terms: list[str]) -> str:
    """In up to four pieces: a processor adds them side by side."""
    pieces = min(4, 1 + len(terms) // 4)
    size = -(-len(terms) // pieces)
    cut = [terms[k * size : (k + 1) * size] for k in range(pieces)]
    cut[0] = [*first, *cut[0]]
    joined = [" + ".join(piece) for piece in cut if piece]
    return (
        joined[0]
        if len(joined) == 1
        else " + ".join(f"({piece})" for piece in joined)
    )
