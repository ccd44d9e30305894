"""What a training method may look at, and what it gives back."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from secateurs.train import Callback


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options a training method may look at."""

    lr: float
    seed: int
    momentum: float = 0.9
    weight_decay: float = 1e-4
    depth: int = 3
    strength: float = 1e-4
    strength_schedule: str = "constant"
    target_sparsity: float | None = None
    steps: int = 1
    rates: "Callable[[float], float] | None" = None
    """Learning rate as a function of the progress."""
    fresh: bool = True
    """Whether the weights are new, or those of a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How to train: the optimizer, callbacks during the run, and what is done to the model at its
    end.
    """

    optimizer: "Optimizer"
    callbacks: "tuple[Callback, ...]" = ()
    finish: "Callable[[], None] | None" = None
