"""Will this λ reach sparsity in the planned steps? Read off the shrinkage of a dead weight, before
or during training.

A weight that the loss has let go decays under the penalty alone: its factors shrink like
exp(−(2λ/D) Σ_t η_t/(1−μ)), so |w| = |ω|^D shrinks like exp(−2λ Σ_t η_t/(1−μ)), whatever the depth.
It is zero when it has come from where it started
(or was held) to the threshold. A decoupled decay goes past the momentum: then 1/(1−μ) is left out.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from secateurs.optim.factorized.factors.maths import EPS
from secateurs.optim.factorized.strength.rates import check, multipliers_of, rates_of
from secateurs.optim.factorized.strength.schedules import Schedule
from secateurs.optim.factorized.strength.wording import enough, midway, too_weak

TYPICAL_WEIGHT = 0.03
"""From where a weight has to come: the size of a weight of a 784-input layer at the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What the shrinkage formula says; an estimate, not a bound: it sees no gradient of the
    loss.
    """

    reaches: bool
    smallest: float
    """Magnitude of a dead weight at the end of the run."""
    needed_strength: float
    """λ that would just reach the threshold with this learning rate and number of steps."""
    needed_steps: float
    """Steps that would just reach it with this λ, at the same mean learning rate; infinite for λ =
    0.
    """
    threshold: float
    sentence: str


def forecast(
    *,
    strength: float,
    steps: int,
    lr: float | Iterable[float] | Callable[[float], float],
    momentum: float = 0.9,
    schedule: str | Schedule | None = None,
    start: float = TYPICAL_WEIGHT,
    threshold: float = EPS,
    decoupled: bool = False,
    taken: int = 0,
    shrunk: float = 0.0,
) -> Forecast:
    """Whether dead weights fall below the threshold within the run.

    Args:
        strength: λ (its peak, when a schedule is given).
        steps: optimizer steps of the whole run.
        lr: a constant rate, one rate per step, or a function of the progress in [0, 1].
        momentum: μ; its effect is the factor 1/(1−μ).
        schedule: multiplier of λ as a function of the progress, or the name of one, as the
            optimizer takes it.
        start: magnitude a dead weight comes from.
        threshold: what counts as zero.
        decoupled: the decay goes past the momentum, as under `FactorizedSGD(decoupled=True)`.
        taken, shrunk: of a run that is under way, the steps taken, and the logarithm of the factor
            by which dead weights have shrunk in them; the rates of the remaining steps are added to
            it.

    The depth does not enter: the factors shrink D times more slowly and the weight is their D-th
    power.

    >>> cosine = lambda t: 0.15 * (1 + math.cos(math.pi * t)) / 2
    >>> forecast(strength=1e-3, steps=17_625, lr=cosine).reaches
    True
    >>> weak = forecast(strength=1e-4, steps=17_625, lr=cosine)
    >>> weak.reaches, round(weak.needed_strength, 5)
    (False, 0.00047)
    """
    check(strength, steps, momentum, start, threshold, taken, shrunk)
    scale = 2 / (1.0 if decoupled else 1 - momentum)
    rates, multipliers = rates_of(lr, steps), multipliers_of(schedule, steps)
    # fsum: tens of thousands of small rates are added, and the verdict compares the sum
    # with a limit.
    reach = scale * math.fsum(
        m * r for m, r in zip(multipliers[taken:], rates[taken:], strict=True)
    )
    # A start below the threshold needs no shrinkage, rather than a negative one.
    whole, needed = shrunk + strength * reach, math.log(max(start / threshold, 1.0))
    # Under way, what is past counts too: λ is assumed to be scaled in the whole run.
    per_strength = whole / strength if strength else reach
    needed_strength = needed / per_strength if per_strength else math.inf
    needed_steps = steps * needed_strength / strength if strength else math.inf
    reaches, smallest = whole >= needed, start * math.exp(-whole)
    if reaches:
        sentence = enough(strength, needed_strength, threshold)
    elif taken:
        sentence = midway(taken, steps, shrunk, whole, needed, threshold)
    else:
        takes = needed_strength, needed_steps
        sentence = too_weak(strength, smallest, threshold, takes)
    return Forecast(
        reaches=reaches,
        smallest=smallest,
        needed_strength=needed_strength,
        needed_steps=needed_steps,
        threshold=threshold,
        sentence=sentence,
    )


def shrinkage(
    decay: float, depth: float, lr: float, momentum: float, decoupled: bool
) -> float:
    """The logarithm of the factor by which one step with the decay 2λ/D of its factors shrinks a
    dead weight.

    >>> [round(shrinkage(0.02 / 3, 3, 0.1, 0.9, decoupled), 6) for decoupled in (False, True)]
    [0.02, 0.002]
    """
    return decay * depth * lr / (1.0 if decoupled else 1 - momentum)
