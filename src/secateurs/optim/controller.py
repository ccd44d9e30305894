"""Steering λ towards a requested sparsity, from the measured share of collapsed weights."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from secateurs.optim.base import FactorizedOptimizer


@dataclass(slots=True, kw_only=True)
class Control:
    """A feedback controller of log λ.

    The wanted share of collapsed weights rises from 0 to the target over the first 70 % of the run. Every `every` steps
    the measured share is compared with the wanted one and log λ moves by `gain` times the error in log density, at most
    `most` at a time. Once the target is met λ falls, so that survivors stay; at the end the collapse threshold is
    set to the rank of the target ("target" in `collapse_`).
    """

    target: float
    steps: int
    every: int = 50
    gain: float = 0.1
    most: float = 0.2
    small: float = 1e-4

    def multiplier(self, optimizer: "FactorizedOptimizer") -> float:
        """What λ is multiplied with now; the state lives in the first parameter group and is saved with it."""
        state: dict[str, Any] = optimizer.param_groups[0].setdefault("control", {"log_scale": 0.0, "share": 0.0})
        return float(state["log_scale"])
