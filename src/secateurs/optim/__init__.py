"""Sparse training through the optimizer: holding zeros, and optimizers that make them."""

from secateurs.optim.base import FactorizedOptimizer, Skipped
from secateurs.optim.collapse import Collapsed
from secateurs.optim.factorized import Factorized, FactorizedSGD
from secateurs.optim.forecast import Forecast, forecast
from secateurs.optim.hold import Held, hold
from secateurs.optim.schedules import RampHoldRelax

__all__ = [
    "Collapsed",
    "Factorized",
    "FactorizedOptimizer",
    "FactorizedSGD",
    "Forecast",
    "Held",
    "RampHoldRelax",
    "Skipped",
    "forecast",
    "hold",
]
