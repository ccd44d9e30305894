"""Steering λ towards a requested sparsity, from the measured share of collapsed weights."""

import math
from dataclasses import dataclass

FALL = 5.0
"""The most that a weight nothing holds may shrink over a run, in powers of e, where the decay is
decoupled: from a starting weight of 0.15 to `SMALL`.
"""
HELD_FALL = 10.0
"""The same where the decay is coupled: gradients stand against it, so it may be stronger. Without
it 60 epochs of the digits at rate 0.3 sent λ from 0.0005 to 0.027 before the first weight was
small, and ended at 56 %; with it they end at 96 %. In 15 epochs of Fashion-MNIST, steered to a
sparsity of 99.5 %, it is worth half a point.
"""
REACHED = 0.6
"""The share of the run at which the density is wanted at its target."""


@dataclass(slots=True, kw_only=True)
class Control:
    """A feedback controller of log λ, with a lock.

    The density (share of weights with |w| ≥ 1e-3) is wanted to fall log-linearly from 1 at 10 % of
    the run to the target at 60 % (`REACHED`). Every `every` steps the density expected a twentieth
    of the run ahead, at its present slope, is compared with the wanted one, and log λ moves by
    `gain` times the difference of the logarithms. Death is for good (Lemma 4), so overshooting
    cannot be undone: once the density is within `margin` of the target, what is small is zeroed, λ
    becomes 0 and the survivors train on. Where it never gets there, `collapse_` cuts by rank at the
    end.

    λ has a ceiling. Until the first weights become small the density does not move, and log λ would
    rise all the while: the decay would then take the good weights with the bad.

    A decoupled decay seldom gets there. It is the same for every weight, so it lowers the good and
    the bad alike, and the noise of an adaptive step holds both above `SMALL`. The ranks are right
    all the same: under a ceiling on λ the cut is made by rank where the plan ends, and the
    survivors have the last 40 % of the run to settle. Cut at the end instead, a run on the digits
    with AdamW fell from 97 to 83 %.

    The state is three numbers in the first parameter group, so it is saved and resumed with the
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
        return {"log_scale": 0.0, "log_density": 0.0, "locked": 0.0}

    def wanted(self, progress: float) -> float:
        """ln of the wanted density at this progress."""
        return (
            math.log(1 - self.target)
            * min(1.0, max(0.0, (progress - 0.1) / (REACHED - 0.1)))
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
    ) -> dict[str, float]:
        """The state after a measurement at this step; log λ does not rise above the ceiling."""
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
        error = log_density + ahead * slope - self.wanted(step / self.steps + ahead)
        # A single odd measurement moves λ by at most 28 %.
        move = max(-0.25, min(0.25, self.gain * error))
        log_scale = min(state["log_scale"] + move, ceiling)
        return {"log_scale": log_scale, "log_density": log_density, "locked": 0.0}

    def ceiling(self, shrinkage: float, fall: float) -> float:
        """The log of the multiplier at which unheld weights shrink by e^-`fall` in a run.

        `shrinkage`: of ln|w| in one step, at multiplier 1.
        """
        return (
            math.log(fall / (shrinkage * self.steps)) if shrinkage > 0 else math.inf
        )

    @staticmethod
    def multiplier(state: dict[str, float]) -> float:
        """What λ is multiplied with."""
        return 0.0 if state["locked"] else math.exp(state["log_scale"])
