"""Where the constants of removed channels go: a bias, a running mean, or one channel that stands
for all.

A constant read by a layer without border is a bias. Read through zero padding it is not: there one
constant channel stays, and the weights of the others are added to its own in proportion (c_j/c ·
w_j), which is exact at every pixel of every resolution.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateurs.graph import Named
from secateurs.ship.compaction.folds import Columns, Folds
from secateurs.ship.compaction.labels import Labelled, Use
from secateurs.ship.compaction.marks import rows
from secateurs.ship.compaction.outputs import own_name
from secateurs.ship.compaction.reach.known import Reach, same
from secateurs.ship.compaction.targets import target_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one layer reads of removed channels: which columns, their constants, and which it
    needs."""

    use: Use
    labels: Tensor
    values: Tensor
    gone: Tensor
    needed: Tensor


def folds(model: nn.Module, found: Labelled, known: Reach, gone: Tensor) -> Folds:
    """Where every constant of the labels in `gone` (a truth value per label) goes."""
    result = Folds()
    by_weight: dict[tuple[str, ...], list[Reading]] = {}
    for use in found.uses:
        # In a grouped layer inputs and outputs of a group go together: nobody is left
        # to read the constant.
        if use.groups == 1:
            reading = _reading(use, found, known, gone)
            # By weight, because one fold serves all uses of a shared weight.
            by_weight.setdefault(use.weight.names, []).append(reading)
    for readings in by_weight.values():
        if any(bool(reading.needed.any()) for reading in readings):
            _fold(model, found, known, readings, result)
    return result


def _reading(use: Use, found: Labelled, known: Reach, gone: Tensor) -> Reading:
    axes = use.node.operation.axes
    if axes is None:
        raise ValueError(f"{use.node.name} is no layer.")
    count = use.into.numel()
    labels = found.groups.roots(use.into)
    values = same(rows(known.constant[use.x], axes.x, count))
    arrive = rows(known.arrive[use.x], axes.x, count).any(1)
    used = rows(known.used[use.node.name], axes.y, use.out.numel()).any(1)
    reads = ((known.weights[use.node.name][0] != 0).any(2) & used.unsqueeze(1)).any(0)
    # NaN != 0: a constant that is not one number.
    needed = gone[labels] & reads & ~arrive & (values != 0)
    return Reading(
        use=use, labels=labels, values=values, gone=gone[labels], needed=needed
    )


def _fold(
    model: nn.Module,
    found: Labelled,
    known: Reach,
    readings: list[Reading],
    result: Folds,
) -> None:
    first = readings[0]
    for reading in readings:
        unknown = reading.needed & reading.values.isnan()
        if bool(unknown.any()):
            where = _where(reading.use)
            result.keep(
                f"emits a constant that differs near the border, read by {where}",
                reading.labels[unknown],
            )
    # The labels just kept change what goes: `removal`
    # asks again, and nothing is moved this time.
    if any(bool((r.needed & r.values.isnan()).any()) for r in readings):
        return
    # At the border a padding's zero takes the place of
    # the constant: a bias would be wrong there.
    if known.padded.get(first.use.node.name, False):
        _fold_columns(readings, result)
    else:
        _fold_bias(model, found, known, readings, result)


def _fold_columns(readings: list[Reading], result: Folds) -> None:
    """One constant channel stands for all others of a layer that sees the border."""
    reading = readings[0]
    where = _where(reading.use)
    # The fold changes the weight itself, which another
    # use or a computation would see as well.
    if len(readings) > 1 or not isinstance(reading.use.weight, Named):
        for other in readings:
            why = f"is a constant read through zero padding by {where}, whose weight has other uses"
            result.keep(why, other.labels[other.needed])
        return
    values = reading.values
    able = ~values.isnan() & (values != 0)
    standing = able & ~reading.gone
    if not bool(standing.any()):
        # All constants were to go, so the largest stays: the others are divided by it.
        best = torch.where(reading.needed, values.abs(), 0.0).argmax()
        result.keep(
            f"stands for all constants that {where} reads through zero padding",
            reading.labels[best : best + 1],
        )
        return
    # A large divisor keeps the factors small, and their rounding errors with them.
    keeper = int(torch.where(standing, values.abs(), 0.0).argmax())
    index = reading.needed.nonzero().flatten()
    result.columns[reading.use.weight.name] = Columns(
        dim=reading.use.weight_in,
        index=index,
        factors=values[index] / values[keeper],
        keeper=keeper,
    )


def _fold_bias(
    model: nn.Module,
    found: Labelled,
    known: Reach,
    readings: list[Reading],
    result: Folds,
) -> None:
    """A shift of the outputs: the sum of constants times weights."""
    shifts = [_shift(reading, known) for reading in readings]
    # Weights can cancel the constants: then there is nothing to move.
    if all(not bool(shift.any()) for shift in shifts):
        return
    first = readings[0].use
    target = target_of(model, found.graph, [reading.use for reading in readings])
    # Uses of one weight share one bias, which can take only one shift.
    equal = all(torch.equal(shift, shifts[0]) for shift in shifts)
    if target is None or not equal:
        for reading in readings:
            why = f"is a constant that {_where(first)} has no bias for"
            result.keep(why, reading.labels[reading.needed])
        return
    if target.new:
        result.fresh[target.name] = first.out
    result.added[target.name] = (
        result.added.get(target.name, 0) + target.sign * shifts[0]
    )


def _shift(reading: Reading, known: Reach) -> Tensor:
    weight = known.weights[reading.use.node.name][0].sum(2)
    values = torch.where(reading.needed, reading.values, 0.0)
    return weight @ values


def _where(use: Use) -> str:
    return own_name(use.weight.direct or use.node.place.module or use.node.name)
