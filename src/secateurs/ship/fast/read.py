"""From traced operators to operations on planes; operators without a rule stay in torch."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from secateurs.base.registry import Registry
from secateurs.graph.operators import Rule, functional, registers
from secateurs.ship.fast import trace
from secateurs.ship.fast.operations import (
    Add,
    Cat,
    Conv,
    Enter,
    Gather,
    Leave,
    Native,
    NotCovered,
    Numbers,
    Outside,
    Planes,
    Pool,
    Reference,
    Scale,
    Shape,
    StaysInTorch,
    Step,
    Steps,
    inputs,
    needed,
    numbers,
    planes_of,
)
from secateurs.ship.fast.trace import BATCH, Traced, plain

# Joins operations: a batch norm goes into the weights, a sum and an activation into the end.


def fuse(steps: list[Step]) -> list[Step]:
    """Batch norms multiplied into convolutions; additions and activations done where a convolution
    ends.
    """
    ops = list(steps)
    # One pair at a time, since a joined operation may join with the next.
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
        # A value with another reader has to exist as it is.
        names = [n for n in inputs(op) if n in made and uses[n] == 1]
        for name in sorted(names, key=lambda n: -made[n]):
            one = _join(ops[made[name]], op)
            if one is not None:
                rest = [o for i, o in enumerate(ops) if i not in (at, made[name])]
                # At the position of the second one, where everything that it reads has been
                # computed.
                return [*rest[: at - 1], one, *rest[at - 1 :]]
    return None


def _join(first: Step, then: Step) -> Step | None:
    """One operation instead of two, if there is one."""
    # A tensor enters as flat as it is read.
    match first, then:
        # After an addition or an activation a factor can no longer go into the weights.
        case Conv(), Scale() if first.added is None and not first.shape.on:
            return _scaled(first, then)
        case ((Conv() | Scale() | Add()), Scale()) if _only_shape(then) and not first.shape.on:
            return replace(first, to=then.to, shape=then.shape)
        case Scale(), Scale() if not first.shape.on:
            scale = _product(first.scale, then.scale)
            # No shift is 0, which stays 0; no scale is 1, which becomes the other one.
            moved = None if first.shift is None else _product(first.shift, then.scale)
            shift = _sum_if_any(moved, then.shift)
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
    # x + x reads the convolution twice, and only one of the two can be merged.
    if then.a == then.b:
        return None
    # a − conv: the convolution itself changes sign.
    if then.b == conv.to and then.sign != 1.0:
        conv = replace(conv, weight=conv.weight * then.sign, bias=conv.bias * then.sign)
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


def _sum_if_any(a: Numbers | None, b: Numbers | None) -> Numbers | None:
    return b if a is None else a if b is None else a + b


RULES: Registry[Rule] = Registry("fast rule")
F = TypeVar("F", bound=Callable[..., Any])


aten = torch.ops.aten
COUNTING = {
    *(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar),
    *(aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar),
}
"""Operators whose plain numbers are values."""


def _follows(node: fx.Node) -> bool:
    """Whether a result is a number and not a tensor."""
    return not isinstance(node.meta.get("val"), Tensor | list | tuple)


def runs(*operators: Any) -> Callable[[F], F]:
    """Decorator: the rule of these operators, and of those that write in place what they give."""
    return registers(RULES, *operators)


def read(traced: Traced, dtype: torch.dtype) -> Steps:
    """The steps of a traced model; values of other dtypes than `dtype` stay in torch."""
    reader = OperatorReader(traced=traced, dtype=dtype)
    for node in traced.nodes:
        reader.visit(node)
    outputs = tuple(
        Reference(reader.leave(reader.env[o.name])) if isinstance(o, fx.Node) else o
        for o in traced.outputs
    )
    return Steps(
        # Unneeded steps are removed first: as second readers they would keep operations from
        # joining.
        steps=fuse(needed(reader.steps, outputs)),
        planes=reader.planes,
        inputs=tuple(node.name for node in traced.inputs),
        dims=tuple(tuple(plain(node.meta["val"].shape))[1:] for node in traced.inputs),
        outputs=outputs,
        structure=traced.structure,
    )


@dataclass(slots=True, kw_only=True)
class OperatorReader:
    """Visits operators in order. Rules write through its methods."""

    traced: Traced
    dtype: torch.dtype
    env: dict[str, Any] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    planes: dict[str, Planes] = field(default_factory=dict)
    place: str = ""
    _left: dict[tuple[str, int], str] = field(default_factory=dict)
    _entered: dict[str, Native] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.env = dict(self.traced.constants) | {
            node.name: StaysInTorch(node) for node in self.traced.inputs
        }

    def visit(self, node: fx.Node) -> None:
        """One operator: computed now if it is constant, by its rule if it has one, else left to
        torch.
        """
        self.place = trace.place(node)
        packed = self.traced.arguments[node.name]
        args, kwargs = plain(fx.node.map_aggregate(packed, self._known))
        values = [
            leaf
            for leaf in pytree.tree_leaves((args, kwargs))
            if isinstance(leaf, Native | StaysInTorch)
        ]
        # Nothing here depends on the input, so it is computed now instead of in every call.
        if not values:
            target: Any = node.target
            with torch.no_grad():
                self.env[node.name] = (
                    target(*args, **kwargs) if self._constant(packed) else StaysInTorch(node)
                )
            if isinstance(self.env[node.name], StaysInTorch):
                self._outside(node, packed, "its size follows the batch")
            return
        try:
            self.env[node.name] = self._by_rule(node, args, kwargs)
        # A gap is not an error: this operator runs in torch, and the report says why.
        except NotCovered as gap:
            self._outside(node, packed, str(gap))

    def _known(self, leaf: Any) -> Any:
        if not isinstance(leaf, fx.Node):
            return leaf
        symbolic = leaf.meta.get("val")
        return plain(symbolic) if isinstance(symbolic, torch.SymInt) else self.env[leaf.name]

    def _constant(self, packed: Any) -> bool:
        leaves = [leaf for leaf in pytree.tree_leaves(packed) if isinstance(leaf, fx.Node)]
        return not any(isinstance(leaf.meta.get("val"), torch.SymInt | int) for leaf in leaves)

    def _by_rule(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if node.target is torch.ops.aten.sym_size.int:
            raise NotCovered("a size")
        if getattr(node.target, "__name__", "") == "getitem" and isinstance(args[0], list | tuple):
            return args[0][args[1]]
        self._check(node)
        target = functional(node.target)
        if target not in RULES:
            raise NotCovered("no kernel")
        # In a shape a size stands for the batch; elsewhere it is a number that changes between
        # calls.
        if target in COUNTING and any(map(_follows, node.all_input_nodes)):
            raise NotCovered("a number that follows the batch")
        return RULES[target](self, *args, **kwargs)

    def _check(self, node: fx.Node) -> None:
        for value in pytree.tree_leaves(node.meta.get("val")):
            if not isinstance(value, Tensor):
                raise NotCovered("not a tensor")
            if value.dtype != self.dtype:
                raise NotCovered(f"{value.dtype} in a network of {self.dtype}")

    def _outside(self, node: fx.Node, packed: Any, why: str) -> None:
        """Keep an operator in torch; its native arguments become tensors first."""
        args, kwargs = fx.node.map_aggregate(packed, self._torch_name)
        self.steps.append(
            Outside(
                to=node.name,
                # Nothing of the user's is written to.
                target=functional(node.target),
                args=args,
                kwargs=kwargs,
                why=why,
                place=self.place,
            )
        )
        self.env[node.name] = StaysInTorch(node)

    def _torch_name(self, leaf: Any) -> Any:
        if not isinstance(leaf, fx.Node):
            return leaf
        value = self.env[leaf.name]
        if isinstance(value, list | tuple):
            return [self._reference(v) for v in value]
        return self._reference(value)

    def _reference(self, value: Any) -> Any:
        return Reference(self.leave(value)) if isinstance(value, Native | StaysInTorch) else value

    # -- for the rules
    # --------------------------------------------------------------------------------------------

    def native(self, value: Any) -> Native:
        """The value on planes, in order."""
        seen = self.view(value)
        if seen.index is None:
            return seen
        if not 1 <= len(seen.dims) <= 3:
            raise NotCovered(f"a value of {len(seen.dims) + 1} dimensions")
        index = seen.index.reshape(-1).numpy()
        return self.emit(Gather, seen.dims, source=seen.name, index=index)

    def view(self, value: Any) -> Native:
        """The value on planes, perhaps as a rearrangement of another."""
        if isinstance(value, Native):
            return value
        if not isinstance(value, StaysInTorch):
            raise NotCovered("a constant where a value is needed")
        return self._enter(value)

    def _enter(self, value: StaysInTorch) -> Native:
        name = value.node.name
        # A tensor is put on planes once, however many operators read it.
        if name not in self._entered:
            shape = tuple(plain(value.node.meta["val"].shape))
            if value.node.meta["val"].dtype != self.dtype:
                raise NotCovered(f"{value.node.meta['val'].dtype} in a network of {self.dtype}")
            if not 2 <= len(shape) <= 4 or shape[0] != BATCH or 0 in shape:
                raise NotCovered(f"an input of shape {shape}")
            self.planes[f"{name}:planes"] = planes_of(shape[1:])
            size = math.prod(shape[1:])
            self.steps.append(Enter(source=name, to=f"{name}:planes", size=size))
            self._entered[name] = Native(f"{name}:planes", shape[1:])
        return self._entered[name]

    def leave(self, value: Any) -> Any:
        """The name of the value as a tensor of torch."""
        if isinstance(value, Tensor):
            return value
        if isinstance(value, StaysInTorch):
            return value.node.name
        if value.index is not None and not 1 <= len(value.dims) <= 3:
            # Flat; Leave gives the dimensions.
            value = Native(value.name, (value.index.numel(),), value.index)
            return self._left_as(self.native(value), value.dims)
        return self._left_as(self.native(value), value.dims)

    def _left_as(self, value: Native, dims: tuple[int, ...]) -> str:
        key = (value.name, hash(dims))
        if key not in self._left:
            self._left[key] = f"{value.name}:tensor{len(self._left)}"
            self.steps.append(Leave(source=value.name, to=self._left[key], dims=dims))
        return self._left[key]

    def emit(self, kind: Any, dims: Sequence[int], **fields: Any) -> Native:
        """Append an operation that makes a value of these dimensions."""
        name = f"v{len(self.steps)}"
        dims = tuple(int(d) for d in dims)
        self.planes[name] = planes_of(dims)
        self.steps.append(kind(to=name, place=self.place, **fields))
        return Native(name, dims)


# Rules of activations, and of operators that do nothing in evaluation mode.


def shaped(to: OperatorReader, x: Any, shape: Shape) -> Native:
    """An activation as a separate operation; later it is joined to the one before it."""
    value = to.native(x)
    return to.emit(Scale, value.dims, source=value.name, shape=shape)


@runs(aten.relu.default)
def relu(to: OperatorReader, x: Any) -> Native:
    """max(x, 0)."""
    return shaped(to, x, Shape(slope=0.0))


@runs(aten.leaky_relu.default)
def leaky_relu(to: OperatorReader, x: Any, slope: float = 0.01) -> Native:
    """x where positive, slope · x elsewhere."""
    return shaped(to, x, Shape(slope=float(slope)))


@runs(aten.prelu.default)
def prelu(to: OperatorReader, x: Any, weight: Any) -> Native:
    """x where positive, elsewhere x times the slope of its channel, or of all."""
    if not isinstance(weight, Tensor):
        raise NotCovered("a slope that depends on the input")
    slopes = tuple(weight.detach().reshape(-1).tolist())
    if len(set(slopes)) == 1:
        return shaped(to, x, Shape(slope=slopes[0]))
    if len(slopes) != to.view(x).dims[0]:
        raise NotCovered(f"{len(slopes)} slopes for values of {to.view(x).dims}")
    return shaped(to, x, Shape(slopes=slopes))


@runs(aten.hardtanh.default, aten.clamp.default)
def clamp(to: OperatorReader, x: Any, low: Any = None, high: Any = None) -> Native:
    """Limits from 0 upward: ReLU, ReLU6."""
    # The kernels support slopes below zero and a cap above, but no other limits.
    if low != 0 or isinstance(high, Tensor) or (high is not None and high <= 0):
        raise NotCovered(f"limits {low} and {high}")
    return shaped(to, x, Shape(slope=0.0, cap=math.inf if high is None else float(high)))


@runs(aten.relu6.default)
def relu6(to: OperatorReader, x: Any) -> Native:
    """min(max(x, 0), 6)."""
    return clamp(to, x, 0, 6.0)


@runs(aten.clamp_min.default)
def clamp_min(to: OperatorReader, x: Any, low: Any) -> Native:
    """max(x, 0)."""
    return clamp(to, x, low)


@runs(aten.dropout.default, aten.feature_dropout.default, aten.alpha_dropout.default)
def dropout(to: OperatorReader, x: Any, p: float, train: bool) -> Native:
    """Nothing in evaluation mode."""
    if train and p > 0:
        raise NotCovered("dropout in training mode")
    return to.view(x)


@runs(
    aten.clone.default, aten.contiguous.default, aten.detach.default, aten.alias.default,
    aten._to_copy.default, aten.to.dtype, aten.to.dtype_layout, aten.to.device,
    aten.positive.default,
)  # fmt: skip
def copy(to: OperatorReader, x: Any, *_: Any, **__: Any) -> Native:
    """The value itself; calls that change the dtype never reach this rule."""
    return to.view(x)


# Helpers shared by several families of rules.


def pair(value: Any, flat: bool) -> tuple[int, int]:
    """One number per side of a plane; a sequence is a plane of one row."""
    sizes = tuple(value) if isinstance(value, list | tuple) else (value,) * (1 if flat else 2)
    sizes = sizes * (2 - flat) if len(sizes) == 1 else sizes
    return (1, sizes[0]) if flat else (sizes[0], sizes[1])


def scaled(to: OperatorReader, x: Any, scale: Any, shift: Any) -> Native:
    """scale · x + shift, one of each per channel."""
    value = to.native(x)
    return to.emit(Scale, value.dims, source=value.name, scale=scale, shift=shift)


# Rules of sums and products.


@runs(aten.add.Tensor, aten.add.Scalar)
def add(to: OperatorReader, a: Any, b: Any, alpha: float = 1) -> Native:
    """a + α b."""
    if _is_value(a) and _is_value(b):
        return _sum(to, a, b, float(alpha))
    value, other = (a, b) if _is_value(a) else (b, a)
    shift = _per_channel(to, value, other) * (alpha if other is b else 1.0)
    # α belongs to b: if b is the value and a the constant, it scales the value.
    if other is a and alpha != 1:
        return scaled(to, value, np.full(len(shift), float(alpha)), shift)
    return scaled(to, value, None, shift)


@runs(aten.sub.Tensor, aten.sub.Scalar)
def sub(to: OperatorReader, a: Any, b: Any, alpha: float = 1) -> Native:
    """a − α b."""
    return add(to, a, b, alpha=-alpha)


@runs(aten.mul.Tensor, aten.mul.Scalar)
def mul(to: OperatorReader, a: Any, b: Any) -> Native:
    """A product with a constant per channel."""
    if _is_value(a) and _is_value(b):
        raise NotCovered("a product of two values")
    value, other = (a, b) if _is_value(a) else (b, a)
    return scaled(to, value, _per_channel(to, value, other), None)


@runs(aten.div.Tensor, aten.div.Scalar)
def div(to: OperatorReader, a: Any, b: Any) -> Native:
    """A quotient by a constant per channel."""
    if _is_value(b):
        raise NotCovered("division by a value")
    return scaled(to, a, 1.0 / _per_channel(to, a, b), None)


@runs(aten.neg.default)
def neg(to: OperatorReader, a: Any) -> Native:
    """−a."""
    return mul(to, a, -1.0)


def _sum(to: OperatorReader, a: Any, b: Any, alpha: float) -> Native:
    left, right = to.native(a), to.native(b)
    if left.dims != right.dims:
        raise NotCovered(f"a sum of {left.dims} and {right.dims}")
    return to.emit(Add, left.dims, a=left.name, b=right.name, sign=alpha)


def _is_value(x: Any) -> bool:
    return not isinstance(x, int | float | Tensor)


def _per_channel(to: OperatorReader, value: Any, constant: Any) -> NDArray[np.float64]:
    """A constant as one number per channel."""
    dims = to.view(value).dims
    full = torch.as_tensor(constant, dtype=torch.float64)
    if full.ndim > len(dims) + 1 or not dims:
        raise NotCovered("a constant with more dimensions than the value")
    wide = torch.broadcast_shapes(full.shape, (1, *dims))  # type: ignore[no-untyped-call]
    spread = full.expand(wide)
    if tuple(spread.shape) != (1, *dims):
        raise NotCovered("a constant that repeats the value")
    rows = spread.reshape(dims[0], -1)
    if not bool((rows == rows[:, :1]).all()):
        raise NotCovered("a constant per position")
    return numbers(rows[:, 0])


# Rules of layers with weights: convolutions, linear layers, batch norms.


@runs(aten.conv2d.default, aten.conv2d.padding, aten.conv1d.default, aten.conv1d.padding)
def conv(
    to: OperatorReader,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Native:
    """Convolutions of every stride, padding, dilation and group."""
    if not isinstance(weight, Tensor) or isinstance(bias, Native):
        raise NotCovered("a kernel that depends on the input")
    value, flat = to.native(x), weight.ndim == 3
    if len(value.dims) != weight.ndim - 1:
        raise NotCovered("no batch dimension")
    kernel = tuple(weight.shape[2:])
    steps, spread = pair(stride, flat), pair(dilation, flat)
    before, after = _padding(padding, kernel, spread, flat)
    # A sequence is a plane of one row: one kernel serves both.
    full = weight.unsqueeze(2) if flat else weight
    size = [
        (n + b + a - d * (k - 1) - 1) // s + 1
        for n, b, a, d, k, s in zip(
            planes_of(value.dims)[1:],
            before,
            after,
            spread,
            full.shape[2:],
            steps,
            strict=True,
        )
    ]
    return to.emit(
        Conv,
        (len(full), size[1]) if flat else (len(full), *size),
        source=value.name,
        weight=numbers(full),
        bias=np.zeros(len(full)) if bias is None else numbers(bias),
        stride=steps,
        padding=before,
        dilation=spread,
        groups=groups,
    )


def _padding(
    padding: Any, kernel: tuple[int, ...], dilation: tuple[int, int], flat: bool
) -> tuple[tuple[int, int], tuple[int, int]]:
    if padding == "valid":
        padding = 0
    if padding == "same":  # the odd one goes to the end
        total = [d * (k - 1) for d, k in zip(dilation[-len(kernel) :], kernel, strict=True)]
        total = [0, *total] if flat else total
        return (total[0] // 2, total[1] // 2), (
            total[0] - total[0] // 2,
            total[1] - total[1] // 2,
        )
    before = pair(padding, flat)
    before = (0, before[1]) if flat else before
    return before, before


@runs(aten.linear.default)
def linear(to: OperatorReader, x: Any, weight: Any, bias: Any = None) -> Native:
    """A linear layer on features."""
    if not isinstance(weight, Tensor) or weight.ndim != 2 or isinstance(bias, Native):
        raise NotCovered("a weight that depends on the input")
    value = to.native(x)
    if len(value.dims) != 1:
        raise NotCovered("a linear layer on more than one feature dimension")
    full = numbers(weight).reshape(*weight.shape, 1, 1)
    shift = np.zeros(len(weight)) if bias is None else numbers(bias)
    return to.emit(Conv, (len(weight),), source=value.name, weight=full, bias=shift)


@runs(aten.addmm.default)
def addmm(
    to: OperatorReader, bias: Any, x: Any, weight: Any, *, beta: float = 1, alpha: float = 1
) -> Native:
    """β b + α x W."""
    if not isinstance(weight, Tensor) or not isinstance(bias, Tensor) or bias.ndim > 1:
        raise NotCovered("a product of two values")
    return linear(to, x, alpha * weight.t(), (beta * bias).expand(weight.shape[1]))


@runs(aten.mm.default, aten.matmul.default)
def matmul(to: OperatorReader, x: Any, weight: Any) -> Native:
    """x W."""
    if not isinstance(weight, Tensor):
        raise NotCovered("a product of two values")
    return linear(to, x, weight.t() if weight.ndim == 2 else weight)


@runs(aten.batch_norm.default)
def batch_norm(
    to: OperatorReader,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Native:
    """In evaluation mode one factor and one shift per channel."""
    if training or not isinstance(mean, Tensor) or not isinstance(var, Tensor):
        raise NotCovered("batch statistics")
    # In float64: it is multiplied into the weights, and only the product is rounded.
    factor = 1.0 / np.sqrt(numbers(var) + eps)
    factor = factor if weight is None else factor * numbers(weight)
    shift = -numbers(mean) * factor + (0.0 if bias is None else numbers(bias))
    return scaled(to, x, factor, shift)


# Rules of operators that only move numbers: views, slices, shuffles, padding, concatenation.


@runs(aten.cat.default)
def cat(to: OperatorReader, xs: Any, dim: int = 0) -> Native:
    """Values concatenated along the channels."""
    values = [to.native(x) for x in xs]
    dims = values[0].dims
    if dim % (len(dims) + 1) != 1 or any(v.dims[1:] != dims[1:] for v in values):
        raise NotCovered(f"a cat along dimension {dim}")
    total = sum(v.dims[0] for v in values)
    return to.emit(Cat, (total, *dims[1:]), sources=tuple(v.name for v in values))


def moves(*operators: Any) -> None:
    """Register operators that only move numbers: applied to positions, they say where each number
    comes from.
    """
    for operator in operators:
        runs(operator)(_moving(operator))


def _moving(operator: Any) -> Callable[..., Any]:
    def rule(to: OperatorReader, x: Any, *args: Any, **kwargs: Any) -> Any:
        value = to.view(x)
        n = math.prod(value.dims)
        places = torch.arange(n).reshape(value.dims) if value.index is None else value.index
        try:
            # torch's own operator moves the positions, so a rule cannot deviate from it.
            moved = operator(_positions(places, operator), *args, **kwargs)
        except (RuntimeError, IndexError, NotImplementedError) as error:
            raise NotCovered(str(error).splitlines()[0]) from error
        if isinstance(moved, Tensor):
            return _move(value, moved)
        return [_move(value, one) for one in moved]

    return rule


def _positions(places: Tensor, operator: Any) -> Tensor:
    """Positions for both samples, counted from 1, so that zeros which the operator adds stay zero.
    Floats if it does not support integers.
    """
    first = places + 1
    second = torch.where(places < 0, 0, first + _SECOND)
    both = torch.stack([first, second])
    return both.double() if operator in _FLOATING else both


def _move(value: Native, both: Tensor) -> Native:
    both = both.long()
    if both.ndim < 2 or both.shape[0] != BATCH:
        raise NotCovered("it mixes the samples of a batch")
    index = both[0] - 1
    # The second sample must take its numbers from the same places as the first.
    same = torch.where(both[0] > 0, both[0] + _SECOND, 0)
    if not bool((both[1] == same).all()) or bool((both[0] > _SECOND).any()) or index.numel() == 0:
        raise NotCovered("it mixes the samples of a batch")
    dims = tuple(index.shape)
    if (
        len(dims) <= 3
        and math.prod(value.dims) == index.numel()
        and _same_planes(value, dims, index)
    ):
        return Native(value.name, dims)
    return Native(value.name, dims, index)


def _same_planes(value: Native, dims: tuple[int, ...], index: Tensor) -> bool:
    """Whether the result is the value itself under another name: same planes in the same order."""
    if value.index is not None or not bool(
        (index.reshape(-1) == torch.arange(index.numel())).all()
    ):
        return False
    channels, height, width = planes_of(value.dims)
    return planes_of(dims)[0] == channels and (planes_of(dims)[1:] == (height, width))


_SECOND = 2**40  # exact in float64
# Operators that refuse integers: they move the positions as float64.
_FLOATING = {
    aten.upsample_nearest2d.vec,
    aten.upsample_nearest1d.vec,
    aten.pixel_shuffle.default,
    aten.pad.default,
    aten.channel_shuffle.default,
}

moves(
    aten.view.default,
    aten.reshape.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten._unsafe_view.default,
    aten.permute.default,
    aten.transpose.int,
    aten.slice.Tensor,
    aten.select.int,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.chunk.default,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.split.default,
    aten.narrow.default,
    aten.flip.default,
    aten.expand.default,
    aten.channel_shuffle.default,
    aten.pixel_shuffle.default,
    aten.upsample_nearest2d.vec,
    aten.repeat.default,
    aten.upsample_nearest1d.vec,
    aten.t.default,
    aten.swapaxes.default,
)


@runs(aten.pad.default)
def pad(
    to: OperatorReader, x: Any, sizes: Any, mode: str = "constant", value: float | None = None
) -> Any:
    """Zeros added around, or a border cut away; other modes repeat numbers."""
    if mode == "constant" and value not in (None, 0, 0.0):
        raise NotCovered(f"padding with {value}")
    return _moving(aten.pad.default)(to, x, sizes, mode, value)


@runs(aten.constant_pad_nd.default)
def constant_pad(to: OperatorReader, x: Any, sizes: Any, value: float = 0) -> Any:
    """Zeros added around, or a border cut away; positions cannot express any other number."""
    if value:
        raise NotCovered(f"padding with {value}")
    return _moving(aten.constant_pad_nd.default)(to, x, sizes)


# Rules of pools: maxima and means over windows.


@runs(aten.max_pool2d.default, aten.max_pool1d.default)
def max_pool(
    to: OperatorReader,
    x: Any,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil: bool = False,
) -> Native:
    """The maximum over windows; padding is never chosen."""
    value = to.native(x)
    flat = len(value.dims) == 2
    sides = _windows(value, kernel, stride or kernel, padding, dilation, ceil)
    rows, columns = (_inside(*side) for side in sides)
    return _pool(to, value, True, rows, columns, np.ones(len(rows) * len(columns)), flat)


@runs(aten.avg_pool2d.default, aten.avg_pool1d.default)
def avg_pool(
    to: OperatorReader,
    x: Any,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil: bool = False,
    count_padding: bool = True,
    divisor: int | None = None,
) -> Native:
    """The mean over windows, with torch's three ways of counting."""
    value = to.native(x)
    flat = len(value.dims) == 2
    sides = _windows(value, kernel, stride or kernel, padding, 1, ceil)
    rows, columns = (_inside(*side) for side in sides)
    counts = [
        # With `ceil` a window may extend beyond the padding, which torch does not count.
        [min(s + k, n + p) - s for s in starts]
        if count_padding
        else [int(e - s) for s, e, _ in _inside(*side)]
        for side in sides
        for starts, k, _, n, p in [side]
    ]
    full = (
        np.outer(counts[0], counts[1])
        if divisor is None
        else np.full((len(rows), len(columns)), divisor)
    )
    return _pool(to, value, False, rows, columns, 1.0 / full.reshape(-1), flat)


@runs(aten.adaptive_avg_pool2d.default, aten.adaptive_avg_pool1d.default)
def adaptive_avg_pool(to: OperatorReader, x: Any, size: Any) -> Native:
    """The mean over windows that cover the plane."""
    value = to.native(x)
    flat = len(value.dims) == 2
    wanted = (1, size[0]) if flat else tuple(size)
    sizes = planes_of(value.dims)[1:]
    rows, columns = (_cover(n, n if m is None else m) for n, m in zip(sizes, wanted, strict=True))
    counts = np.outer(rows[:, 1] - rows[:, 0], columns[:, 1] - columns[:, 0])
    return _pool(to, value, False, rows, columns, 1.0 / counts.reshape(-1), flat)


@runs(aten.mean.dim)
def mean(to: OperatorReader, x: Any, dims: Any, keep: bool = False, **_: Any) -> Native:
    """The mean over all positions."""
    value = to.native(x)
    n = len(value.dims) + 1
    if n < 3 or sorted(d % n for d in dims) != list(range(2, n)):
        raise NotCovered(f"a mean over dimensions {dims}")
    whole = adaptive_avg_pool(to, value, (1,) * (n - 2))
    return whole if keep else Native(whole.name, whole.dims[:1])


def _windows(
    value: Native, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> list[tuple[list[int], int, int, int, int]]:
    """Per side (starts, size, dilation, length, padding)."""
    if len(value.dims) not in (2, 3):
        raise NotCovered("a pool without a batch dimension")
    flat = len(value.dims) == 2
    sides = []
    for side, n in enumerate(planes_of(value.dims)[1:]):
        if flat and side == 0:
            sides.append(([0], 1, 1, 1, 0))
            continue
        k, s, p, d = (pair(v, flat)[side] for v in (kernel, stride, padding, dilation))
        sides.append(([o * s - p for o in range(_pool_size(n, k, s, p, d, ceil))], k, d, n, p))
    return sides


def _pool_size(n: int, k: int, s: int, p: int, d: int, ceil: bool) -> int:
    space = n + 2 * p - d * (k - 1) - 1
    size = (-(-space // s) if ceil else space // s) + 1
    # The last window starts inside.
    return size - 1 if ceil and (size - 1) * s >= n + p else size


def _inside(starts: list[int], k: int, d: int, n: int, p: int) -> NDArray[np.int32]:
    # The first step of a dilated window that lies inside the plane.
    first = [s if s >= 0 else s + d * -(s // d) for s in starts]
    return np.array(
        [(f, min(s + d * (k - 1) + 1, n), d) for s, f in zip(starts, first, strict=True)],
        dtype=np.int32,
    )


# From ⌊i n / m⌋ to ⌈(i + 1) n / m⌉, as in torch; windows may overlap.
def _cover(n: int, m: int) -> NDArray[np.int32]:
    return np.array([(i * n // m, -(-(i + 1) * n // m), 1) for i in range(m)], dtype=np.int32)


def _pool(
    to: OperatorReader,
    value: Native,
    maximum: bool,
    rows: NDArray[np.int32],
    columns: NDArray[np.int32],
    factor: NDArray[np.float64],
    flat: bool,
) -> Native:
    if bool((rows[:, 0] >= rows[:, 1]).any() or (columns[:, 0] >= columns[:, 1]).any()):
        raise NotCovered("an empty window")
    dims = (value.dims[0], len(columns)) if flat else (value.dims[0], len(rows), len(columns))
    return to.emit(
        Pool,
        dims,
        source=value.name,
        maximum=maximum,
        rows=rows,
        columns=columns,
        factor=factor,
    )
