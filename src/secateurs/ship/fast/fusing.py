"""Operations joined: a batch norm goes into the weights, a sum and an activation into the end."""

from dataclasses import replace

import numpy as np

from secateurs.ship.fast.operations import (
    Add,
    Conv,
    Enter,
    Gather,
    Numbers,
    Scale,
    Step,
    inputs,
)


def fused(steps: list[Step]) -> list[Step]:
    """Batch norms multiplied into convolutions; additions and activations done where a convolution
    ends.
    """
    ops = list(steps)
    # One pair at a time: what was joined may join with the next.
    while True:
        joined = _join_one(ops)
        if joined is None:
            return ops
        ops = joined


def _join_one(ops: list[Step]) -> list[Step] | None:
    uses: dict[str, int] = {}
    for op in ops:
        for name in inputs(op):
            uses[name] = uses.get(name, 0) + 1
    made = {op.to: i for i, op in enumerate(ops)}
    for at, op in enumerate(ops):
        # A value that somebody else reads, too, has to be there as it is.
        names = [n for n in inputs(op) if n in made and uses[n] == 1]
        for name in sorted(names, key=lambda n: -made[n]):
            one = _joined(ops[made[name]], op)
            if one is not None:
                rest = [o for i, o in enumerate(ops) if i not in (at, made[name])]
                # Where the second one stood: by then
                # everything that it reads has been made.
                return [*rest[: at - 1], one, *rest[at - 1 :]]
    return None


def _joined(first: Step, then: Step) -> Step | None:
    """One operation instead of two, where there is such a one."""
    # A tensor enters as flat as it is read.
    match first, then:
        # Behind an addition or an activation a factor
        # can no longer go into the weights.
        case Conv(), Scale() if first.added is None and not first.shape.on:
            return _scaled(first, then)
        case ((Conv() | Scale() | Add()), Scale()) if (
            _only_shape(then) and not first.shape.on
        ):
            return replace(first, to=then.to, shape=then.shape)
        case Scale(), Scale() if not first.shape.on:
            scale = _product(first.scale, then.scale)
            # No shift is 0, which stays 0; no scale is 1, which becomes the other one.
            moved = None if first.shift is None else _product(first.shift, then.scale)
            shift = _sum(moved, then.shift)
            return replace(then, source=first.source, scale=scale, shift=shift)
        case Enter(), Gather() if np.array_equal(then.index, np.arange(first.size)):
            return replace(first, to=then.to)
        case Conv(), Add() if first.added is None and not first.shape.on:
            return _added(first, then)
        case _:
            return None


def _scaled(conv: Conv, then: Scale) -> Conv:
    scale = np.ones(len(conv.bias)) if then.scale is None else then.scale
    weight = conv.weight * scale.reshape(-1, 1, 1, 1)
    bias = conv.bias * scale + (0.0 if then.shift is None else then.shift)
    return replace(conv, to=then.to, weight=weight, bias=bias, shape=then.shape)


def _added(conv: Conv, then: Add) -> Conv | None:
    # x + x reads the convolution twice, and only one of the two can become it.
    if then.a == then.b:
        return None
    # a − conv: the convolution itself changes sign.
    if then.b == conv.to and then.sign != 1.0:
        conv = replace(
            conv, weight=conv.weight * then.sign, bias=conv.bias * then.sign
        )
        return replace(conv, to=then.to, added=then.a, shape=then.shape)
    # conv + α · other: the kernel adds without a factor.
    if then.sign != 1.0:
        return None
    other = then.b if then.a == conv.to else then.a
    return replace(conv, to=then.to, added=other, shape=then.shape)


def _only_shape(op: Scale) -> bool:
    return op.scale is None and op.shift is None


def _product(a: Numbers | None, b: Numbers | None) -> Numbers | None:
    return b if a is None else a if b is None else a * b


def _sum(a: Numbers | None, b: Numbers | None) -> Numbers | None:
    return b if a is None else a if b is None else a + b
