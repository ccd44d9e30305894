"""Points in a training run: "160ep" is after 160 epochs, "2000it" after 2000 iterations (optimizer
steps).
"""

import re
from dataclasses import dataclass
from typing import Literal

from secateurs.errors import ArgumentError

_WRITTEN = re.compile(r"(\d+)\s*(it|ep)")


@dataclass(frozen=True, slots=True)
class Step:
    """A point in a training run, counted in iterations ("it") or epochs ("ep").

    Steps of one unit compare with each other; across units, convert both with `iterations` first.

    >>> Step.parse("160ep"), Step.parse(2000)
    (Step(160, 'ep'), Step(2000, 'it'))
    >>> Step.parse("80ep") < Step.parse("160ep")
    True
    >>> Step.parse("2ep").iterations(391)
    782
    >>> str(Step(5, "ep"))
    '5ep'
    """

    count: int
    unit: Literal["it", "ep"] = "it"

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 0:
            raise ArgumentError(
                f"a step counts whole iterations or epochs, at least 0, not {self.count!r}."
            )
        if self.unit not in ("it", "ep"):
            raise ArgumentError(
                f"a step counts iterations ('it') or epochs ('ep'), not {self.unit!r}."
            )

    @classmethod
    def parse(cls, written: "Step | str | int") -> "Step":
        """The step written as "160ep", "2000it" or a number of iterations; a `Step` is returned as
        it is.
        """
        if isinstance(written, Step):
            return written
        if isinstance(written, int):
            return cls(written)
        match = _WRITTEN.fullmatch(written.strip()) if isinstance(written, str) else None
        # "160" may mean epochs or iterations: better to ask.
        if match is None and isinstance(written, str) and written.strip().isdigit():
            count = written.strip()
            raise ArgumentError(
                f"{written!r} has no unit: write '{count}ep' for epochs or '{count}it' for"
                " iterations."
            )
        if match is None:
            raise ArgumentError(
                f"{written!r} is not a step; write it as '160ep', '2000it' or a number of"
                " iterations."
            )
        return cls(int(match[1]), "ep" if match[2] == "ep" else "it")

    def iterations(self, batches_per_epoch: int | None = None) -> int:
        """The step in iterations; epochs need the number of batches (optimizer steps) of one
        epoch.
        """
        if self.unit == "it":
            return self.count
        if batches_per_epoch is None or batches_per_epoch < 1:
            raise ArgumentError(
                f"'{self}' counts epochs and an epoch of {batches_per_epoch!r} batches has no"
                " length in iterations; give batches_per_epoch, or write the step as '...it'."
            )
        return self.count * batches_per_epoch

    def __lt__(self, other: "Step | str | int") -> bool:
        return self.count < self._like(other)

    def __le__(self, other: "Step | str | int") -> bool:
        return self.count <= self._like(other)

    def __gt__(self, other: "Step | str | int") -> bool:
        return self.count > self._like(other)

    def __ge__(self, other: "Step | str | int") -> bool:
        return self.count >= self._like(other)

    def __str__(self) -> str:
        return f"{self.count}{self.unit}"

    def __repr__(self) -> str:
        return f"Step({self.count}, {self.unit!r})"

    def _like(self, other: "Step | str | int") -> int:
        step = Step.parse(other)
        if step.unit != self.unit:
            raise ArgumentError(
                f"'{self}' and '{step}' are counted in different units; "
                "compare their iterations(batches_per_epoch) instead."
            )
        return step.count
