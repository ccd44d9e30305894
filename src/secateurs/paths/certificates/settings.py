"""How much work a certificate may take, and at which levels its statistical part speaks."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypedDict

import torch

from secateurs.errors import ArgumentError
from secateurs.registry import unknown


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

    def __post_init__(self) -> None:
        if self.restarts < 0 or self.steps < 0:
            raise ArgumentError(
                f"restarts={self.restarts}, steps={self.steps}: a search makes at least 0 of each."
            )
        # `not … > 0` refuses NaN as well.
        if self.seconds is not None and not self.seconds > 0:
            raise ArgumentError(
                f"seconds={self.seconds!r}: a budget is a positive number of seconds."
            )

    @property
    def limit(self) -> float:
        """The seconds as a number; infinite without a limit."""
        return math.inf if self.seconds is None else float(self.seconds)


def settings(options: dict[str, Any] | Options) -> Settings:
    """The keywords as one checked value; a misspelt one is refused with a suggestion."""
    known = [field.name for field in fields(Settings)]
    wrong = [name for name in options if name not in known]
    if wrong:
        raise ArgumentError(
            "; ".join(unknown("keyword of certify", name, known) for name in wrong)
        )
    return Settings(**options)
