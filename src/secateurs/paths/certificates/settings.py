"""How much work a certificate may take, and at which levels its statistical part speaks."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import TypedDict

import torch

from secateurs.errors import ArgumentError
from secateurs.registry import refuse_unknown


class Options(TypedDict, total=False):
    """The keywords of `certify` that have a good default; see `Settings`."""

    alpha: float
    beta: float
    restarts: int
    steps: int
    effort: float
    symbols: int | None
    seconds: float | None
    progress: Callable[[str], None] | None
    generator: torch.Generator | None
    output: str | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What `Options` holds, checked.

    Attributes:
        alpha, beta: Levels of the statistical certificate.
        restarts, steps: Of the search for a lower bound.
        effort: Cells of backward passes per box.
        symbols: Of one affine form, None for what memory holds.
        seconds: For the whole, None without a limit.
        progress: Called with a line of text after each step.
        generator: Of the search's random starts.
        output: Which output of the models.
    """

    alpha: float = 0.05
    beta: float = 0.05
    restarts: int = 4
    steps: int = 10
    effort: float = 1e9
    symbols: int | None = None
    seconds: float | None = None
    progress: Callable[[str], None] | None = None
    generator: torch.Generator | None = None
    output: str | int | None = None

    def __post_init__(self) -> None:
        if not (_whole(self.restarts, 0) and _whole(self.steps, 0)):
            raise ArgumentError(
                f"restarts={self.restarts!r}, steps={self.steps!r}: a search makes a whole number,"
                " at least 0, of each."
            )
        if self.seconds is not None and not _positive(self.seconds):
            raise ArgumentError(
                f"seconds={self.seconds!r}: a budget is a positive number of seconds."
            )
        if not _positive(self.effort):
            raise ArgumentError(
                f"effort={self.effort!r}: a positive number of cells, such as 1e9."
            )
        if self.symbols is not None and not _whole(self.symbols, 1):
            raise ArgumentError(
                f"symbols={self.symbols!r}: a whole number of at least 1, or None for what memory"
                " holds."
            )

    @property
    def limit(self) -> float:
        """The seconds as a number; infinite without a limit."""
        return math.inf if self.seconds is None else float(self.seconds)


def settings(
    options: Options, function: Callable[..., object] = Settings
) -> Settings:
    """The keywords of a function as one checked value; a misspelt one is refused with a
    suggestion.
    """
    refuse_unknown(function, options, [field.name for field in fields(Settings)])
    return Settings(**options)


def _whole(value: object, least: int) -> bool:
    """A whole number of at least this much; True and False are none."""
    # NumPy's numbers are `Integral` and `Real` as well, and they are no int or float.
    if isinstance(value, bool) or not isinstance(value, Integral):
        return False
    return int(value) >= least


def _positive(value: object) -> bool:
    """A number above 0, not NaN; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return float(value) > 0
