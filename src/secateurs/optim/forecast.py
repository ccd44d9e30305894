"""Will this λ reach sparsity in the planned steps? Read off the shrinkage of a dead weight before any training.

A weight that the loss has let go decays under the penalty alone: its factors shrink like exp(−(2λ/D) Σ_t η_t/(1−μ)), so
|w| = |ω|^D shrinks like exp(−2λ Σ_t η_t/(1−μ)), whatever the depth. It is zero when it has come from where it started
(or was held) to the threshold.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from secateurs.errors import ArgumentError
from secateurs.optim.factors import EPS
from secateurs.optim.schedules import Schedule

TYPICAL_WEIGHT = 0.03
"""From where a weight has to come: the size of a weight of a 784-input layer at the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What the shrinkage formula says; an estimate, not a bound: it sees no gradient of the loss."""

    reaches: bool
    smallest: float
    """Magnitude of a dead weight at the end of the run."""
    needed_strength: float
    """λ that would just reach the threshold with this learning rate and number of steps."""
    needed_steps: float
    """Steps that would just reach it with this λ, at the same mean learning rate; infinite for λ = 0."""
    threshold: float
    sentence: str


def forecast(
    *,
    strength: float,
    steps: int,
    lr: float | Iterable[float] | Callable[[float], float],
    momentum: float = 0.9,
    schedule: Schedule | None = None,
    start: float = TYPICAL_WEIGHT,
    threshold: float = EPS,
) -> Forecast:
    """Whether dead weights fall below the threshold within the run.

    Args:
        strength: λ (its peak, when a schedule is given).
        steps: optimizer steps of the whole run.
        lr: a constant rate, one rate per step, or a function of the progress in [0, 1].
        momentum: μ; its effect is the factor 1/(1−μ).
        schedule: multiplier of λ as a function of the progress.
        start: magnitude a dead weight comes from.
        threshold: what counts as zero.

    The depth does not enter: the factors shrink D times more slowly and the weight is their D-th power.

    >>> cosine = lambda t: 0.15 * (1 + math.cos(math.pi * t)) / 2
    >>> forecast(strength=1e-3, steps=17_625, lr=cosine).reaches
    True
    >>> weak = forecast(strength=1e-4, steps=17_625, lr=cosine)
    >>> weak.reaches, round(weak.needed_strength, 5)
    (False, 0.00047)
    """
    _check(strength, steps, momentum)
    rates = _rates(lr, steps)
    multipliers = [1.0] * steps if schedule is None else [schedule(t / steps) for t in range(steps)]
    reach = 2 * math.fsum(m * r for m, r in zip(multipliers, rates, strict=True)) / (1 - momentum)
    needed = math.log(max(start / threshold, 1.0))
    needed_strength = needed / reach if reach else math.inf
    needed_steps = steps * needed_strength / strength if strength else math.inf
    reaches, smallest = strength >= needed_strength, start * math.exp(-strength * reach)
    sentence = (
        f"strength {strength:g} reaches sparsity: dead weights fall below {threshold:.1e} "
        f"(strength {needed_strength:.2g} would just do)."
        if reaches
        else f"strength {strength:g} is too small to reach sparsity: dead weights end near {smallest:.1e}, not below "
        f"{threshold:.1e}. It takes strength >= {needed_strength:.2g} or {needed_steps:.0f} steps."
    )
    return Forecast(
        reaches=reaches,
        smallest=smallest,
        needed_strength=needed_strength,
        needed_steps=needed_steps,
        threshold=threshold,
        sentence=sentence,
    )


def _check(strength: float, steps: int, momentum: float) -> None:
    problems = []
    if not strength >= 0:
        problems.append(f"strength={strength} is below 0")
    if steps < 1:
        problems.append(f"steps={steps} is below 1")
    if not 0 <= momentum < 1:
        problems.append(f"momentum={momentum} is outside [0, 1)")
    if problems:
        raise ArgumentError(f"cannot forecast: {'; '.join(problems)}.")


def _rates(lr: float | Iterable[float] | Callable[[float], float], steps: int) -> list[float]:
    if callable(lr):
        return [lr(t / steps) for t in range(steps)]
    if isinstance(lr, Iterable):
        rates = [float(rate) for rate in lr]
        if len(rates) != steps:
            raise ArgumentError(f"lr has {len(rates)} rates for steps={steps}: give one per step.")
        return rates
    return [float(lr)] * steps
