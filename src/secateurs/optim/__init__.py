"""Sparse training through the optimizer: holding zeros, and optimizers that make them."""

from secateurs.optim.base import FactorizedOptimizer
from secateurs.optim.based import Factorized
from secateurs.optim.collapse import Collapsed
from secateurs.optim.dynamics import Dynamics
from secateurs.optim.factorized import FactorizedSGD
from secateurs.optim.forecast import Forecast, forecast
from secateurs.optim.grid import GridRun, grid
from secateurs.optim.guards import Skipped
from secateurs.optim.hold import Held, hold
from secateurs.optim.schedules import RampHoldRelax
from secateurs.optim.stable_lr import RangeTest, largest_stable_lr
from secateurs.optim.tune import Tuned, prune_and_tune_

__all__ = [
    "Collapsed",
    "Dynamics",
    "Factorized",
    "FactorizedOptimizer",
    "FactorizedSGD",
    "Forecast",
    "GridRun",
    "Held",
    "RampHoldRelax",
    "RangeTest",
    "Skipped",
    "Tuned",
    "forecast",
    "grid",
    "hold",
    "largest_stable_lr",
    "prune_and_tune_",
]
