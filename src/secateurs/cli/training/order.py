"""What `secateurs train` was asked for, checked before torch is loaded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from secateurs.cli.training.methods import METHODS
from secateurs.cli.training.usual import USUAL
from secateurs.errors import ArgumentError

SCHEDULES = ("cosine", "step", "constant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A training: which method, how long, in which steps, from which weights."""

    method: str
    length: str
    batch: int
    lr: float
    schedule: str = "cosine"
    augment: bool = False
    start: Path | None = None
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    """The method's own options, as `methods.own` collected them."""

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ArgumentError(
                f"--batch {self.batch}: a step needs at least one example."
            )
        if self.schedule not in SCHEDULES:
            raise ArgumentError(
                f"there is no schedule {self.schedule!r}. Known: {', '.join(SCHEDULES)}."
            )


def usual_order(
    method: str, length: str | None, batch: int | None, lr: float | None, **more: Any
) -> Order:
    """An order in which what was not said is what the method usually runs with."""
    METHODS[
        method
    ]  # an unknown method is refused with its neighbours, not taken for sgd
    # A method that is registered elsewhere has no usual numbers of its own.
    usual = USUAL.get(method, USUAL["sgd"])
    return Order(
        method=method,
        length=usual.length if length is None else length,
        batch=usual.batch if batch is None else batch,
        lr=usual.lr if lr is None else lr,
        **more,
    )
