"""How `secateurs certify` proves: the domain, the methods, and what is said of fresh data."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secateurs.cli.asked import Which, nothing_in
from secateurs.cli.options import tell
from secateurs.errors import ArgumentError

if TYPE_CHECKING:
    from torch import Tensor

    from secateurs.data import Dataset
    from secateurs.paths import Certificate


@dataclass(frozen=True, slots=True)
class How:
    """Where the bound has to hold, how it is computed, and what is said of fresh data."""

    radius: float
    points: int
    methods: list[str] | None
    rounding: bool
    seconds: float | None
    alpha: float
    beta: float
    seed: int

    def __post_init__(self) -> None:
        if self.points < 1:
            raise ArgumentError(
                f"--points {self.points}: at least one input is needed."
            )

    def options(self, known: "Dataset | None") -> "dict[str, Any]":
        """The options of `secateurs.certify`."""
        from secateurs.random import generator

        options: dict[str, Any] = {
            "radius": self.radius,
            "methods": self.methods or "auto",
            "rounding": True if self.rounding else "auto",
            "seconds": self.seconds,
            "generator": generator(self.seed, "certify"),
        }
        if known is not None:
            # The statement on fresh data is made of the whole test set, not of the balls.
            options |= {"data": (known.test_x, known.test_y)}
            options |= {"alpha": self.alpha, "beta": self.beta}
        return options


def proven(
    which: Which, dense: Path, sparse: Path, known: "Dataset | None", how: How
) -> "tuple[Certificate, Tensor]":
    """The certificate, and the inputs in the middle of its balls."""
    from secateurs.paths import certify as prove

    first, notes = which.opened(dense)
    second, _ = which.opened(sparse)
    inputs = nothing_in(notes) if known is None else known.test_x[: how.points]
    # Nobody reads progress in a log, and scripts parse what is left.
    say = tell if sys.stderr.isatty() else None
    certificate = prove(
        first.eval(),
        second.eval(),
        around=inputs,
        progress=say,
        **how.options(known),
    )
    return certificate, inputs
