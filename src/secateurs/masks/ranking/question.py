"""What `select` and `sketch` are asked, and what is known of it once it is checked."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from secateurs.masks.pattern import Pattern
from secateurs.masks.ranking.shares import ScopeLike
from secateurs.masks.ranking.units import Units


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of `select` and `sketch`, as it was given; the fields are their arguments.

    `finite` says that somebody has looked at every score and found it finite: of large ones another
    look would cost as much as the choice.
    """

    scores: Mapping[str, Tensor]
    sparsity: float | None = None
    density: float | None = None
    compression: float | None = None
    scope: ScopeLike = "global"
    pattern: str | Pattern = "unstructured"
    how: str = "topk"
    floor: float = 1
    within: Mapping[str, Tensor] | None = None
    weights: Mapping[str, Tensor] | None = None
    absolute: bool = False
    finite: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A checked question to `select`."""

    scores: Mapping[str, Tensor]
    within: Mapping[str, Tensor]
    pattern: Pattern
    units: Units
    keep: int
    counts: Mapping[str, int] | None
    floor: Mapping[str, int]
    capacity: Mapping[str, int]
