"""How the strength λ moves through a run: constant, or up, level and down again.

A schedule is a function of the progress in [0, 1] that returns the multiplier of λ. Measured on
LeNet-300-100 and Fashion-MNIST: a λ that ramps up, holds and relaxes to 0 is worth about two points
over a constant one at the same compression: the ramp lets features form before they compete, the
relaxation lets survivors grow back to size.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from secateurs.base.registry import Registry
from secateurs.base.sharding import count_each_whole
from secateurs.errors import ArgumentError

Schedule: TypeAlias = Callable[[float], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RampHoldRelax:
    """Rise linearly over the first `ramp` of the run, hold at 1, fall linearly to 0 over the last
    `relax`.

    >>> schedule = RampHoldRelax(ramp=0.3, relax=0.3)
    >>> [round(schedule(t), 2) for t in (0.0, 0.15, 0.5, 0.85, 1.0)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    ramp: float = 0.3
    relax: float = 0.3

    def __post_init__(self) -> None:
        if not (
            # 1e-12 is for shares whose sum rounds to just above 1.
            self.ramp >= 0 and self.relax >= 0 and self.ramp + self.relax <= 1 + 1e-12
        ):
            raise ArgumentError(
                f"ramp={self.ramp} and relax={self.relax} are fractions of the run: neither may be "
                "negative, and together they are at most 1."
            )

    def __call__(self, progress: float) -> float:
        up = progress / self.ramp if self.ramp else 1.0
        down = (1 - progress) / self.relax if self.relax else 1.0
        return max(0.0, min(1.0, up, down))


SCHEDULES: Registry[Callable[[], Schedule]] = Registry("λ schedule")
SCHEDULES.register("ramp-hold-relax")(RampHoldRelax)
SCHEDULES.register("ramp")(lambda: RampHoldRelax(relax=0.0))
SCHEDULES.register("relax")(lambda: RampHoldRelax(ramp=0.0))
SCHEDULES.register("constant")(lambda: RampHoldRelax(ramp=0.0, relax=0.0))


def schedule(which: str | Schedule) -> Schedule:
    """The schedule of this name, or the function itself."""
    return SCHEDULES[which]() if isinstance(which, str) else which


SMALL = 1e-3
"""|w| below this is on its way out: below every starting weight of the `dwf` initialisation (3e-3).
"""


@torch.no_grad()
def density(factorized: Iterable[Tensor], *, total: int) -> float:
    """Share of all parameters that is not small; what is not factorized counts as dense."""
    small = sum(count_each_whole(factorized, lambda weight: (weight.abs() < SMALL).sum()))
    return 1 - small / total


FALL = 5.0
"""The most that a weight which nothing holds may shrink over a run, in powers of e, where the decay
is
decoupled: from a starting weight of 0.15 to `SMALL`.
"""
HELD_FALL = 10.0
"""The same where the decay is coupled: gradients counteract it, so it may be stronger. Without it
60 epochs of the digits at rate 0.3 sent λ from 0.0005 to 0.027 before the first weight was small,
and ended at 56 %; with it they end at 96 %. In 15 epochs of Fashion-MNIST, steered to a sparsity of
99.5 %, it is worth half a point.
"""
BEGUN = 0.1
"""The share of the run after which the density should fall."""
REACHED = 0.6
"""The share of the run at which the density should be at its target. docs/factorization.md states
both shares, and `test_one_measurement_by_hand` has them as numbers.
"""


@dataclass(slots=True, kw_only=True)
class Control:
    """A feedback controller of log λ, with a lock.

    The density (share of weights with |w| ≥ 1e-3) should fall log-linearly from 1 at `BEGUN` of the
    run to the target at `REACHED`. Every `every` steps the density expected a twentieth of the run
    ahead, at its present slope, is compared with the wanted one, and log λ moves by `gain` times
    the difference of the logarithms. Dead weights never return (Lemma 4), so overshooting cannot be
    undone: once the density is within `margin` of the target, what is small is zeroed, λ becomes 0
    and the survivors train on. Where it never gets there, `collapse_` cuts by rank at the end.

    λ has a ceiling. Until the first weights become small the density does not move, and log λ would
    rise all the while: the decay would then kill useful weights with the others.

    A decoupled decay seldom gets there. It is the same for every weight, so it lowers the good and
    the bad alike, and the noise of an adaptive step holds both above `SMALL`. An adaptive base is
    worse off with a coupled penalty: it divides each gradient by its size, so that a λ above that
    of the loss makes every factor, good or bad, smaller by the learning rate in every step. Steered
    without a ceiling, AdamW at 1e-3 on a CNN of the digits saw λ rise 16,000-fold, and ended with
    95 % zeros and 8 % accuracy. The ranks are right all the same. So in both cases (`planned`) λ
    is never far above what was asked for, and what the plan of the density wants gone is cut by
    rank, a little at a time, while the rest trains (`cuts`): a cubic fall of the density between
    the same shares of the run. Cut at once at 60 %, the same CNN fell from 91 to 29 %. What was cut
    although it was not small is counted.

    The state is four numbers in the first parameter group, so it is saved and resumed with the
    optimizer.
    """

    target: float
    steps: int
    gain: float = 0.15
    margin: float = 0.02

    @property
    def every(self) -> int:
        """Steps between two measurements."""
        return max(1, self.steps // 400)

    def start(self) -> dict[str, float]:
        """The state before the first step."""
        return {"log_scale": 0.0, "log_density": 0.0, "locked": 0.0, "cut": 0.0}

    def planned(self, progress: float) -> float:
        """The density at this progress where the plan is kept by cuts: slow at the end, when every
        weight that goes was needed the most.
        """
        past = min(1.0, max(0.0, (progress - BEGUN) / (REACHED - BEGUN)))
        return 1 - self.target * (1 - (1 - past) ** 3)

    def cuts(self, step: int) -> bool:
        """Whether a plan is kept by a cut at this measurement: some fifty in a run, in which the
        rest can settle.
        """
        return step // self.every % 8 == 0 and step > BEGUN * self.steps

    def wanted(self, progress: float) -> float:
        """ln of the wanted density at this progress."""
        return (
            math.log(1 - self.target) * min(1.0, max(0.0, (progress - BEGUN) / (REACHED - BEGUN)))
            if self.target
            else 0.0
        )

    def update(
        self,
        state: dict[str, float],
        step: int,
        density: float,
        *,
        ceiling: float = math.inf,
        planned: bool = False,
    ) -> dict[str, float]:
        """The state after a measurement at this step; log λ does not rise above the ceiling.

        Where the plan is kept by cuts (`planned`), λ is steered along that plan.
        """
        log_density = math.log(max(density, 1e-9))
        met = math.log(1 - self.target) + math.log1p(self.margin)
        # Under a ceiling the target may stay out of reach: then the plan ends with a cut.
        due = ceiling < math.inf and step >= REACHED * self.steps
        if state["locked"] or log_density <= met or due:
            return {**state, "log_density": log_density, "locked": 1.0}
        # Looking a twentieth of the run ahead damps the loop: λ acts on the density
        # with a delay.
        ahead = 0.05
        slope = (log_density - state["log_density"]) * self.steps / self.every
        progress = step / self.steps + ahead
        wanted = math.log(self.planned(progress)) if planned else self.wanted(progress)
        error = log_density + ahead * slope - wanted
        # A single odd measurement moves λ by at most 28 %.
        move = max(-0.25, min(0.25, self.gain * error))
        log_scale = min(state["log_scale"] + move, ceiling)
        return {**state, "log_scale": log_scale, "log_density": log_density}

    def ceiling(self, shrinkage: float, fall: float) -> float:
        """The log of the multiplier at which unheld weights shrink by e^-`fall` in a run.

        `shrinkage`: of ln|w| in one step, at multiplier 1.
        """
        return math.log(fall / (shrinkage * self.steps)) if shrinkage > 0 else math.inf

    @staticmethod
    def multiplier(state: dict[str, float]) -> float:
        """What λ is multiplied with."""
        return 0.0 if state["locked"] else math.exp(state["log_scale"])
