"""A range test for the largest stable learning rate, which is where factorized training becomes
sparse.

The paper finds the best trade-off just below the rate at which training becomes unstable (appendix
E), and deeper factorizations tolerate more: so measure it instead of guessing.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs.errors import ArgumentError, TrainingError


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One rate: the loss before the first step and the mean over the last tenth; infinite when it
    diverged.
    """

    lr: float
    first: float
    last: float

    @property
    def stable(self) -> bool:
        """Whether the loss went down and stayed finite."""
        return self.last < self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeTest:
    """The largest rate below which every trial was stable; an estimate for this many steps, not a
    guarantee.
    """

    lr: float
    trials: tuple[Trial, ...]
    steps: int


def largest_stable_lr(
    model: nn.Module,
    loss: Callable[[nn.Module], Tensor],
    make: Callable[[nn.Module, float], Optimizer],
    *,
    low: float = 1e-2,
    high: float = 4.0,
    trials: int = 10,
    steps: int = 100,
) -> RangeTest:
    """Train copies of the model for a few steps at rates from low to high; stop at the first that
    does not learn.

    Args:
        model: untouched; every trial works on a copy.
        loss: the loss of a model on the next batch; called once per step.
        make: the optimizer for a copy and a rate, e.g. `lambda m, lr: FactorizedSGD(m.parameters(),
            lr=lr)`. Give it a generator of a fixed seed, so that trials differ in the rate only.
        trials: rates, evenly spaced in logarithm.

    Raises:
        TrainingError: not even `low` is stable.
    """
    if not (0 < low < high and trials >= 2 and steps >= 10):
        raise ArgumentError(
            f"need 0 < low < high, trials >= 2, steps >= 10; got {low}, {high}, {trials}, {steps}."
        )
    done: list[Trial] = []
    for step in range(trials):
        rate = low * (high / low) ** (step / (trials - 1))
        # Every trial sees the same draws, and the caller's generator is left where it
        # was.
        with torch.random.fork_rng():
            done.append(_trial(copy.deepcopy(model), loss, make, rate, steps))
        if not done[-1].stable:
            break
    stable = [trial.lr for trial in done if trial.stable]
    if not stable:
        raise TrainingError(
            f"not even lr={low:g} lowers the loss in {steps} steps; lower low= or give more steps."
        )
    return RangeTest(lr=stable[-1], trials=tuple(done), steps=steps)


def _trial(
    model: nn.Module,
    loss: Callable[[nn.Module], Tensor],
    make: Callable[[nn.Module, float], Optimizer],
    rate: float,
    steps: int,
) -> Trial:
    optimizer, losses = make(model, rate), list[float]()
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(model)
        losses.append(float(value.detach()))
        if not math.isfinite(losses[-1]):
            return Trial(lr=rate, first=losses[0], last=math.inf)
        value.backward()  # type: ignore[no-untyped-call]
        try:
            optimizer.step()
        except TrainingError:  # weights that are not finite
            return Trial(lr=rate, first=losses[0], last=math.inf)
    # The mean of a tenth: one batch alone may be lucky.
    tail = losses[-max(1, steps // 10) :]
    return Trial(lr=rate, first=losses[0], last=math.fsum(tail) / len(tail))
