"""Rounds of pruning: how many entries each is to keep (a schedule), and one of them (`cut_once`,
which selects within the masks so far).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from secateurs.base.bits import write_masked_
from secateurs.base.parameters import Params
from secateurs.base.registry import Registry
from secateurs.errors import ArgumentError
from secateurs.masks.budget import Keep, ScopeLike, Selection
from secateurs.masks.patterns import Unstructured, pattern_of
from secateurs.masks.pieces import count_each
from secateurs.masks.select import CheckedSelection, best, check_selection, choose_masks
from secateurs.masks.topk import cut_products_, kernel_for, largest
from secateurs.masks.units import TensorUnits
from secateurs.scores.scorer import Scorer

# Schedules: the entries kept after each round, as pure functions.

Curve: TypeAlias = Callable[[float, float, float], float]
"""`(start, end, fraction) -> entries kept` after a fraction of the way; falls from `start` at 0 to
`end` at 1.
"""

SCHEDULES: Registry[Curve] = Registry("schedule")
"""Curves by name. A new one: `@SCHEDULES.register("name")` on a function of start, end and
fraction.
"""


@SCHEDULES.register("one-shot")
def one_shot(start: float, end: float, fraction: float) -> float:
    """Everything at once: `end` in the first round."""
    return end if fraction > 0 else start


@SCHEDULES.register("exponential")
def exponential(start: float, end: float, fraction: float) -> float:
    """start · (end/start)^fraction: every round keeps the same share of what is left.

    From a dense model, the density after round k of R is s^(k/R), as SynFlow prunes (Tanaka et al.
    2020).
    """
    # 0/0 and 0^0 are avoided: an empty parameter starts at 0, and fraction 0 is the start itself.
    return start * (end / start) ** fraction if start and fraction else start


@SCHEDULES.register("linear")
def linear(start: float, end: float, fraction: float) -> float:
    """start + (end − start) · fraction: every round cuts the same number."""
    return start + (end - start) * fraction


@SCHEDULES.register("cubic")
def cubic(start: float, end: float, fraction: float) -> float:
    """end + (start − end) · (1 − fraction)³: much early, little late, as gradual magnitude pruning
    does it.

    (Zhu & Gupta 2017, equation 1.)
    """
    return end + (start - end) * (1 - fraction) ** 3


def counts(schedule: str, *, start: int, end: int, rounds: int) -> list[int]:
    """Entries kept after each round: whole numbers that never grow, the last one exactly `end`.

    >>> counts("exponential", start=1000, end=10, rounds=4)
    [316, 100, 32, 10]
    >>> counts("cubic", start=1000, end=0, rounds=4)
    [422, 125, 16, 0]
    """
    if rounds < 1:
        raise ArgumentError(f"rounds={rounds!r}: pruning takes at least one round.")
    return counts_at(schedule, [k / rounds for k in range(1, rounds + 1)], start=start, end=end)


def counts_at(schedule: str, fractions: Sequence[float], *, start: int, end: int) -> list[int]:
    """Entries kept at increasing fractions of the way, each rounded to a whole number; exactly
    `end` at 1.
    """
    if not 0 <= end <= start:
        raise ArgumentError(f"cannot go from {start} entries kept to {end}: masks only shrink.")
    curve, kept, last = SCHEDULES[schedule], [], start
    for fraction in fractions:
        # The last count is set, not computed: powers of floats need not end at a whole number.
        wanted = end if fraction >= 1 else round(curve(start, end, fraction))
        # Masks only shrink, so a curve that rises again is held at its lowest.
        last = min(last, max(end, wanted))
        kept.append(last)
    return kept


def counts_by_share(
    *, start: int, end: int, per_round: float, rounds: int | None = None
) -> list[int]:
    """Entries kept after rounds that each cut the share `per_round` of what is left, until exactly
    `end` are.

    The last round cuts less where the others do not lead to `end` (iterative magnitude pruning).
    With `rounds`, exactly this many, for one parameter of a model whose rounds follow from the
    whole.

    >>> counts_by_share(start=1000, end=500, per_round=0.2)
    [800, 640, 512, 500]
    """
    if not 0 < per_round < 1:
        raise ArgumentError(
            f"per_round={per_round!r}: it is the share of the kept entries cut per round, in"
            " (0, 1)."
        )
    if rounds is None:
        if not 0 < end <= start:
            raise ArgumentError(
                f"no number of rounds of {per_round:.0%} leads from {start} entries kept to {end}."
            )
        # 0.8⁵ of the entries are five rounds, whatever the logarithms say.
        needed = math.log(end / start) / math.log(1 - per_round)
        rounds = max(1, math.ceil(round(needed, 6)))
    return [
        *(max(end, round(start * (1 - per_round) ** k)) for k in range(1, rounds)),
        end,
    ]


# What each round is to keep, of all parameters together or of each.

Masks: TypeAlias = dict[str, Tensor]

CountsPerRound: TypeAlias = Callable[[int, int], Sequence[int]]
"""`(start, end) -> entries kept after each round`."""


def final_selection(
    selection: Selection, weights: Params, within: Params
) -> CheckedSelection[TensorUnits]:
    """How many entries the last round keeps; a budget that cannot be met is refused as `select`
    would.
    """
    # Only counts are read here. They do not depend on the scores, for which the weights stand in,
    # and are those of topk, however the entries are chosen. The scorer refuses weights that are not
    # finite.
    final = check_selection(
        replace(selection, how="topk"), weights, within=within, weights=weights, finite=True
    )
    demand = final.demand
    if final.counts is None and demand.keep < sum(demand.floor.values()):
        best(final)  # refuses floors beyond the budget before it does anything else
    return final


def targets_of(
    final: CheckedSelection[TensorUnits],
    scope: ScopeLike,
    within: Params,
    counts_per_round: CountsPerRound,
) -> list[Keep]:
    """What each round is to keep, down to the final selection. Parameters with a density of their
    own (scope "layer" or "row", a mapping) each follow their own schedule.

    A later pruning starts from what an earlier one has left, not from everything.
    """
    start = {**final.demand.sizes, **entries_left(within)}
    # Where each parameter has its own amount, a schedule over the sum would starve the small ones.
    own = isinstance(scope, Mapping) or scope in ("layer", "row")
    if not own or final.counts is None:
        return list(counts_per_round(sum(start.values()), final.demand.keep))
    each = {name: counts_per_round(start[name], count) for name, count in final.counts.items()}
    return [dict(zip(each, row, strict=True)) for row in zip(*each.values(), strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round was asked to keep and what it kept."""

    number: int
    asked: int
    kept: int
    total: int

    @property
    def density(self) -> float:
        """kept / total."""
        return self.kept / self.total if self.total else 1.0


def kept_and_total(masks: Params) -> tuple[int, int]:
    """Entries that masks keep together, and how many there are."""
    return sum(entries_left(masks).values()), sum(mask.numel() for mask in masks.values())


def entries_left(masks: Params) -> dict[str, int]:
    """How many entries each mask keeps."""
    return count_each(masks)


def cut_once(
    selection: Selection,
    scores: Params,
    target: Keep,
    *,
    weights: Params,
    within: Params,
    generator: torch.Generator | None,
) -> Masks:
    """One round: `select` within the masks so far.

    A round may ask for more than the round before left, because groups are kept whole and the
    pattern allows fewer than everything; it then keeps what is there.
    """
    # The scorer has refused scores that are not finite.
    checked = check_selection(
        selection, scores, within=within, weights=weights, keep=target, finite=True
    )
    return choose_masks(checked, generator)


# A round of a score that is |weight ⊙ gradient|, cut without writing the scores.


def takes_products(selection: Selection, weights: Params, within: Params) -> bool:
    """Whether rounds of this selection may be cut by `cut_products`: one threshold for all entries,
    and weights that a compiled pass takes.
    """
    return (
        isinstance(pattern_of(selection.pattern), Unstructured)
        and (selection.how, selection.scope) == ("topk", "global")
        and kernel_for(weights, within) is not None
    )


def cut_products(
    scorer: Scorer, target: int, *, floor: Mapping[str, int], within: Masks, left: Mapping[str, int]
) -> tuple[Masks, dict[str, int]] | None:
    """One round in a single pass over gradients and weights, which also cuts the scorer's copy: the
    masks of `cut_once`, and how many entries each keeps.

    None where the score has no gradients to offer or the pass cannot be: `cut_once` then has to do
    the round.
    """
    found = scorer.gradients(within)
    if found is None:
        return None
    gradients, weights = found
    left = {name: left.get(name, weight.numel()) for name, weight in weights.items()}
    keep = min(target, sum(left.values()))
    # Parameters at their floor stay as they are; those that fall below it keep their best.
    masks = {
        name: within[name] if name in within else torch.ones_like(weight, dtype=torch.bool)
        for name, weight in weights.items()
        if left[name] <= floor[name]
    }
    kept = {name: left[name] for name in masks}
    while True:
        free = [name for name in weights if name not in masks]
        done = cut_products_(
            {name: gradients[name] for name in free},
            {name: weights[name] for name in free},
            keep - sum(kept.values()),
            within={name: within[name] for name in free if name in within},
            room=sum(left[name] for name in free),
        )
        if done is None:
            scorer.restore(within)
            return None
        short = [name for name in free if done[1][name] < floor[name]]
        if not short:
            break
        scorer.restore(within)
        for name in short:
            score = (gradients[name] * weights[name]).abs_()
            masks |= largest({name: score}, floor[name], within=within)
            kept[name] = floor[name]
            write_masked_(weights[name], weights[name], masks[name])
    masks = {name: masks[name] if name in masks else done[0][name] for name in weights}
    kept = {name: kept[name] if name in kept else done[1][name] for name in weights}
    scorer.was_cut(masks)
    return masks, kept
