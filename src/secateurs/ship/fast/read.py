"""From traced operators to operations on planes; what has no rule stays in torch and is named."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from secateurs.registry import Registry
from secateurs.ship.fast import trace
from secateurs.ship.fast.fusing import fused
from secateurs.ship.fast.operations import (
    Enter,
    Gather,
    Leave,
    Outside,
    Planes,
    Reference,
    Step,
    needed,
)
from secateurs.ship.fast.trace import BATCH, Traced, plain
from secateurs.ship.fast.values import Gap, Held, Native, Steps, planes_of

Rule: TypeAlias = Callable[..., Any]
RULES: Registry[Rule] = Registry("fast rule")
F = TypeVar("F", bound=Callable[..., Any])


aten = torch.ops.aten
COUNTING = {
    *(aten.add.Tensor, aten.add_.Tensor, aten.add.Scalar),
    *(aten.sub.Tensor, aten.sub_.Tensor, aten.sub.Scalar),
    *(aten.mul.Tensor, aten.mul_.Tensor, aten.mul.Scalar),
    *(aten.div.Tensor, aten.div_.Tensor, aten.div.Scalar),
}
"""Operators whose plain numbers are values."""


def _follows(node: fx.Node) -> bool:
    """Whether a result is a number and not a tensor."""
    return not isinstance(node.meta.get("val"), Tensor | list | tuple)


def runs(*operators: Any) -> Callable[[F], F]:
    """Decorator: the rule of these operators."""
    register = RULES.register(*operators)

    def decorate(rule: F) -> F:
        register(rule)
        return rule

    return decorate


def read(traced: Traced, dtype: torch.dtype) -> Steps:
    """The steps of a traced model; values of other dtypes than `dtype` stay in torch."""
    reader = Reader(traced=traced, dtype=dtype)
    for node in traced.nodes:
        reader.visit(node)
    outputs = tuple(
        reader.leave(reader.env[o.name]) if isinstance(o, fx.Node) else o
        for o in traced.outputs
    )
    return Steps(
        # What nobody needs goes first: as a second reader
        # it would keep operations from joining.
        steps=fused(needed(reader.steps, outputs)),
        planes=reader.planes,
        inputs=tuple(node.name for node in traced.inputs),
        dims=tuple(
            tuple(plain(node.meta["val"].shape))[1:] for node in traced.inputs
        ),
        outputs=outputs,
        structure=traced.structure,
    )


@dataclass(slots=True, kw_only=True)
class Reader:
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
            node.name: Held(node) for node in self.traced.inputs
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
            if isinstance(leaf, Native | Held)
        ]
        # Nothing here depends on the input, so it is
        # computed once, now, and not in every call.
        if not values:
            target: Any = node.target
            with torch.no_grad():
                self.env[node.name] = (
                    target(*args, **kwargs) if self._constant(packed) else Held(node)
                )
            if isinstance(self.env[node.name], Held):
                self._outside(node, packed, "its size follows the batch")
            return
        try:
            self.env[node.name] = self._by_rule(node, args, kwargs)
        # A gap is no error: this one operator runs in torch, and the report says why.
        except Gap as gap:
            self._outside(node, packed, str(gap))

    def _known(self, leaf: Any) -> Any:
        if not isinstance(leaf, fx.Node):
            return leaf
        symbolic = leaf.meta.get("val")
        return (
            plain(symbolic)
            if isinstance(symbolic, torch.SymInt)
            else self.env[leaf.name]
        )

    def _constant(self, packed: Any) -> bool:
        leaves = [
            leaf for leaf in pytree.tree_leaves(packed) if isinstance(leaf, fx.Node)
        ]
        return not any(
            isinstance(leaf.meta.get("val"), torch.SymInt | int) for leaf in leaves
        )

    def _by_rule(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if node.target is torch.ops.aten.sym_size.int:
            raise Gap("a size")
        if getattr(node.target, "__name__", "") == "getitem" and isinstance(
            args[0], list | tuple
        ):
            return args[0][args[1]]
        self._check(node)
        if node.target not in RULES:
            raise Gap("no kernel")
        # In a shape a size stands for the batch; elsewhere it is a number, new in each call.
        if node.target in COUNTING and any(map(_follows, node.all_input_nodes)):
            raise Gap("a number that follows the batch")
        return RULES[node.target](self, *args, **kwargs)

    def _check(self, node: fx.Node) -> None:
        for value in pytree.tree_leaves(node.meta.get("val")):
            if not isinstance(value, Tensor):
                raise Gap("not a tensor")
            if value.dtype != self.dtype:
                raise Gap(f"{value.dtype} in a network of {self.dtype}")

    def _outside(self, node: fx.Node, packed: Any, why: str) -> None:
        """Keep an operator in torch; its native arguments become tensors first."""
        args, kwargs = fx.node.map_aggregate(packed, self._torch_name)
        self.steps.append(
            Outside(
                to=node.name,
                target=_functional(node.target),
                args=args,
                kwargs=kwargs,
                why=why,
                place=self.place,
            )
        )
        self.env[node.name] = Held(node)

    def _torch_name(self, leaf: Any) -> Any:
        if not isinstance(leaf, fx.Node):
            return leaf
        value = self.env[leaf.name]
        if isinstance(value, list | tuple):
            return [self._reference(v) for v in value]
        return self._reference(value)

    def _reference(self, value: Any) -> Any:
        return (
            Reference(self.leave(value))
            if isinstance(value, Native | Held)
            else value
        )

    # -- for the rules
    # --------------------------------------------------------------------------------------------

    def native(self, value: Any) -> Native:
        """The value on planes, in order."""
        seen = self.view(value)
        if seen.index is None:
            return seen
        if not 1 <= len(seen.dims) <= 3:
            raise Gap(f"a value of {len(seen.dims) + 1} dimensions")
        index = seen.index.reshape(-1).numpy()
        return self.emit(Gather, seen.dims, source=seen.name, index=index)

    def view(self, value: Any) -> Native:
        """The value on planes, perhaps as a rearrangement of another."""
        if isinstance(value, Native):
            return value
        if not isinstance(value, Held):
            raise Gap("a constant where a value is needed")
        return self._enter(value)

    def _enter(self, value: Held) -> Native:
        name = value.node.name
        # A tensor is laid on planes once, however many operators read it.
        if name not in self._entered:
            shape = tuple(plain(value.node.meta["val"].shape))
            if value.node.meta["val"].dtype != self.dtype:
                raise Gap(
                    f"{value.node.meta['val'].dtype} in a network of {self.dtype}"
                )
            if not 2 <= len(shape) <= 4 or shape[0] != BATCH or 0 in shape:
                raise Gap(f"an input of shape {shape}")
            self.planes[f"{name}:planes"] = planes_of(shape[1:])
            size = math.prod(shape[1:])
            self.steps.append(Enter(source=name, to=f"{name}:planes", size=size))
            self._entered[name] = Native(f"{name}:planes", shape[1:])
        return self._entered[name]

    def leave(self, value: Any) -> Any:
        """The name of the value as a tensor of torch."""
        if isinstance(value, Tensor):
            return value
        if isinstance(value, Held):
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


def _functional(target: Any) -> Any:
    """The out-of-place operator of an in-place one: nothing of the user's is written to."""
    schema = getattr(target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return target
    packet = getattr(
        torch.ops.aten, schema.name.split("::")[1].removesuffix("_"), None
    )
    return getattr(packet, target._overloadname, target)
