"""Figures in print that a study names, to be drawn dotted beside its own."""

from collections.abc import Mapping
from typing import Any

from secateurs.study.settings.checks import number

_compression, _accuracy = number(1.0), number(0.0, 100.0)


def printed_curves(value: Any) -> str:
    """What is wrong with `{name: [[compression, accuracy in percent], ...]}`; "" if nothing is.

    >>> printed_curves({"SNIP 2019": [[10, 88.6], [50, 82.1]]})
    ''
    >>> printed_curves({"SNIP 2019": [[0.5, 88.6]]})
    "'SNIP 2019': 0.5 is not a finite number from 1 on"
    """
    if not isinstance(value, Mapping):
        return (
            f"{value!r} is not a table of lists; write [[compression, accuracy], ...]"
        )
    wrong = ((name, _curve(points)) for name, points in value.items())
    return "; ".join(f"{name!r}: {text}" for name, text in wrong if text)


def _curve(points: Any) -> str:
    if not isinstance(points, list | tuple) or not points:
        return "a curve is a list of [compression, accuracy]"
    for point in points:
        if not isinstance(point, list | tuple) or len(point) != 2:
            return f"{point!r} is not [compression, accuracy]"
        if text := _compression(point[0]) or _accuracy(point[1]):
            return text
    return ""
