"""Will this λ reach sparsity in the planned steps? Read off the shrinkage of a dead weight, before
or during training.

A weight without a gradient from the loss decays under the penalty alone: its factors shrink like
exp(−(2λ/D) Σ_t η_t/(1−μ)), so |w| = |ω|^D shrinks like exp(−2λ Σ_t η_t/(1−μ)), whatever the depth.
It counts as zero once it has shrunk from where it started (or was held) to the threshold. A
decoupled decay bypasses the momentum: then 1/(1−μ) is left out.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.optim.factorized.maths import EPS
from secateurs.optim.factorized.members import Group, Members, RunLength
from secateurs.optim.factorized.options import is_number
from secateurs.optim.factorized.schedules import Schedule
from secateurs.optim.factorized.schedules import schedule as schedule_of

# Rates and multipliers of every step of a run, as numbers that a forecast can add up.

ROUNDING = 1e-6
"""How far below 0 the rounding of a schedule may take a rate or a multiplier."""


LARGEST = torch.finfo(torch.float32).max
"""Above, a rate is infinite to a step in single precision."""


def rates_of(lr: float | Iterable[float] | Callable[[float], float], steps: int) -> list[float]:
    if callable(lr):
        return _sound("lr", (lr(t / steps) for t in range(steps)))
    # A tensor can be iterated, too, but gives tensors: one list is faster and of plain
    # numbers.
    if isinstance(lr, Tensor):
        lr = lr.tolist()
    if isinstance(lr, Iterable):
        rates = _sound("lr", lr)
        if len(rates) != steps:
            raise ArgumentError(f"lr has {len(rates)} rates for steps={steps}: give one per step.")
        return rates
    return _sound("lr", [lr]) * steps


def multipliers_of(schedule: str | Schedule | None, steps: int) -> list[float]:
    if schedule is None:
        return [1.0] * steps
    multiplier = schedule_of(schedule)
    return _sound("the schedule", (multiplier(t / steps) for t in range(steps)))


def _sound(what: str, given: Iterable[float]) -> list[float]:
    """Numbers, finite and not below 0."""
    values: list[float] = []
    for value in given:
        try:
            values.append(float(value))
        except (TypeError, ValueError):
            raise ArgumentError(
                f"cannot forecast: {what} gives {value!r} at step {len(values)}, which is not a "
                "number."
            ) from None
        # Written so that NaN is refused: it fails both comparisons.
        if not -ROUNDING <= values[-1] < math.inf:
            raise ArgumentError(
                f"cannot forecast: {what} is {values[-1]:g} at step {len(values) - 1}, not a "
                "finite number of at least 0."
            )
    return values


def check(
    strength: float,
    steps: int,
    momentum: float,
    start: float,
    threshold: float,
    taken: int,
    shrunk: float,
) -> None:
    problems = [
        f"{name}={value!r} is not a finite number of at least 0"
        for name, value in (("strength", strength), ("shrunk", shrunk))
        if not (is_number(value) and value >= 0)
    ]
    problems += [
        f"{name}={value!r} is not a positive finite number"
        for name, value in (("start", start), ("threshold", threshold))
        if not (is_number(value) and value > 0)
    ]
    if not _whole(steps) or steps < 1:
        problems.append(f"steps={steps!r} is not a positive whole number")
    elif not _whole(taken) or not 0 <= taken <= steps:
        problems.append(f"taken={taken!r} is not a whole number from 0 to steps={steps}")
    if not (is_number(momentum) and 0 <= momentum < 1):
        problems.append(f"momentum={momentum!r} is outside [0, 1)")
    if problems:
        raise ArgumentError(f"cannot forecast: {'; '.join(problems)}.")


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


TYPICAL_WEIGHT = 0.03
"""The size from which a dying weight shrinks: that of a weight of a 784-input layer at the
start.
"""


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
        decoupled: the decay bypasses the momentum, as under `FactorizedSGD(decoupled=True)`.
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
    # During a run, the steps taken count, too: λ is assumed to be scaled in the whole run.
    per_strength = whole / strength if strength else reach
    needed_strength = needed / per_strength if per_strength else math.inf
    needed_steps = steps * needed_strength / strength if strength else math.inf
    reaches, smallest = whole >= needed, start * math.exp(-whole)
    if reaches:
        sentence = (
            f"strength {strength:g} reaches sparsity: dead weights fall below {threshold:.1e} "
            f"(strength {needed_strength:.2g} would just do)."
        )
    elif not taken:
        sentence = (
            f"strength {strength:g} is too small to reach sparsity: dead weights end near"
            f" {smallest:.1e}, not below {threshold:.1e}. It takes strength >="
            f" {needed_strength:.2g} or {needed_steps:.0f} steps."
        )
    else:
        # e^710 overflows a double.
        so_far, by_then, at_least = (
            f"{math.exp(min(logarithm, 700.0)):.2g}" for logarithm in (shrunk, whole, needed)
        )
        rest = f", which the present rate makes {by_then} after {steps}" if taken < steps else ""
        much = (
            f"{needed / whole:.2g} times the strength, the rate or the steps"
            if whole
            else "a strength and rate above 0"
        )
        sentence = (
            f"dead weights have shrunk by a factor of {so_far} in {taken} steps{rest};"
            f" {at_least} is needed to fall below {threshold:.1e}. It takes {much}."
        )
    return Forecast(
        reaches=reaches,
        smallest=smallest,
        needed_strength=needed_strength,
        needed_steps=needed_steps,
        threshold=threshold,
        sentence=sentence,
    )


# The least hopeful forecast of all groups of an optimizer.


def least_hopeful(
    members: Members, length: RunLength, *, steps: int | None = None, **options: float
) -> tuple[Group, Forecast] | None:
    """The least hopeful forecast of all groups with a penalty.

    It assumes the current rates for the steps to come; with `steps`, it looks only at those taken.
    """
    found = [
        (group, _forecast(group, members.taken, length, steps, options))
        for group in members.groups
        if members.shrinks(group) and (group["strength"] or group["shrunk"])
    ]
    return max(found, key=lambda pair: pair[1].smallest, default=None)


def _forecast(
    group: Group,
    taken: int,
    length: RunLength,
    steps: int | None,
    options: dict[str, float],
) -> Forecast:
    return forecast(
        # Schedules may round to just below 0.
        strength=max(0.0, group["strength"]),
        steps=steps or length.steps or 1,
        lr=max(0.0, float(group["lr"])) if steps is None else 0.0,
        momentum=float(group.get("momentum", 0.0)),
        schedule=length.schedule if steps is None else None,
        decoupled=bool(group["decoupled"]),
        taken=taken,
        shrunk=max(0.0, group["shrunk"]),
        **options,
    )
