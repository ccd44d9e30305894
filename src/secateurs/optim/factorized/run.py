"""What is factorized and how, and how long the run is: the options, checked and named."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from secateurs.optim.factorized import arguments
from secateurs.optim.factorized.factors.maths import TINY
from secateurs.optim.factorized.strength.schedules import Schedule
from secateurs.optim.factorized.strength.schedules import schedule as schedule_of
from secateurs.optim.factorized.strength.target import Control


@dataclass(frozen=True, slots=True, kw_only=True)
class Factorization:
    """What becomes of a weight: how many factors, how they start, what presses on them.

    The fields are the options of a parameter group; `FactorizedSGD` explains each. They are checked
    with the groups, which may have options of their own.
    """

    depth: float | None = 3
    strength: float = 1e-4
    decoupled: bool = False
    init: str | None = None
    sigma: float | None = None
    match_variance: bool = False
    zeros: str | None = None
    groups: str | None = None
    shared: int = 1
    lean: bool = False
    freeze: float = TINY

    def options(self) -> dict[str, Any]:
        """Defaults of a parameter group. "shrunk" counts what the penalty has done so far."""
        return {**asdict(self), "shrunk": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLength:
    """How long a run is, and how λ moves over it: by a schedule, and towards a target."""

    steps: int | None = None
    schedule: Schedule | None = None
    control: Control | None = None

    @classmethod
    def of(
        cls, steps: int | None, schedule: str | Schedule | None, target: float | None
    ) -> "RunLength":
        """The run that these options mean (`arguments.run` has checked them)."""
        arguments.target(target, steps)
        return cls(
            steps=steps,
            schedule=None if schedule is None else schedule_of(schedule),
            control=Control(target=target, steps=steps)
            if steps and target is not None
            else None,
        )

    @property
    def target(self) -> float | None:
        """The target sparsity, if there is one."""
        return None if self.control is None else self.control.target

    def multiplier(self, taken: int, control: Mapping[str, float] | None) -> float:
        """What λ is multiplied with after so many steps, in this state of the controller."""
        factor = 1.0
        if self.schedule is not None and self.steps:
            # Runs that go on beyond `steps` stay at the schedule's end.
            factor = float(self.schedule(min(1.0, taken / self.steps)))
        if self.control is not None:
            factor *= self.control.multiplier(dict(control or self.control.start()))
        return factor
