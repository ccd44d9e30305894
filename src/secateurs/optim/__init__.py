"""Sparse training through the optimizer: holding zeros, and optimizers that make them."""

from typing import TYPE_CHECKING

from secateurs.base.lazy import open_on_first_use

if TYPE_CHECKING:
    from secateurs.optim.attached import StepMethod, TrainingCost
    from secateurs.optim.changing import ACDC, SET, RigL
    from secateurs.optim.factorized.any_optimizer import Factorized
    from secateurs.optim.factorized.collapse import Collapsed
    from secateurs.optim.factorized.dynamics import Dynamics
    from secateurs.optim.factorized.forecast import Forecast, forecast
    from secateurs.optim.factorized.optimizer import FactorizedOptimizer, Skipped
    from secateurs.optim.factorized.schedules import RampHoldRelax
    from secateurs.optim.factorized.sgd import FactorizedSGD
    from secateurs.optim.holding import Held, hold
    from secateurs.optim.hyperbolic import HAM
    from secateurs.optim.reparametrized import DGating, PowerPropagation
    from secateurs.optim.tuning import Tuned, prune_and_tune_

__all__ = [
    "ACDC",
    "HAM",
    "SET",
    "Collapsed",
    "DGating",
    "Dynamics",
    "Factorized",
    "FactorizedOptimizer",
    "FactorizedSGD",
    "Forecast",
    "Held",
    "PowerPropagation",
    "RampHoldRelax",
    "RigL",
    "Skipped",
    "StepMethod",
    "TrainingCost",
    "Tuned",
    "forecast",
    "hold",
    "prune_and_tune_",
]

open_on_first_use(__name__)
