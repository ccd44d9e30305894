"""Rules from operators to primitives (`lowers`), and what an exported operator is: its out-of-place
form, its result's type, whether it casts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias, TypeVar

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from secateurs.base.registry import Registry

# From operators to primitives: the registry of lowering rules.
#
# A rule is a function of a few lines under a decorator; it receives the operator's own arguments,
# in which every tensor that depends on the network's input is a `Value` and every other tensor a
# `Source`:
#
#     @lowers(aten.relu.default)
#     def relu(build, x):
#         return build.activation(x, slope=0.0)
#
# It returns a `Value`, or raises `Gap("why")`. Register rules for your own operators the same way.


class Gap(Exception):
    """Raised by a rule: this use of the operator is not covered, and why. Collected by
    `capture`.
    """


@dataclass(frozen=True, slots=True)
class Value:
    """The result of a node: a tensor that depends on the network's input."""

    name: str
    shape: tuple[int, ...]

    def meta(self) -> Tensor:
        """A tensor of this shape without values."""
        return torch.empty(self.shape, dtype=torch.float64, device="meta")


@dataclass(frozen=True, slots=True)
class Unknown:
    """Stands for a value that could not be lowered, so that all gaps are found in one pass."""


@dataclass(frozen=True, slots=True)
class Many:
    """Several results of one operator; `getitem` picks one by calling `pick(i)`."""

    pick: Callable[[int], Any]


Rule: TypeAlias = Callable[..., Any]
LOWERINGS: Registry[Rule] = Registry("lowering rule")
OPAQUES: Registry[Rule] = Registry("opaque rule")
"""What `capture(..., opaque=True)` asks where no lowering rule covers an operator."""
F = TypeVar("F", bound=Callable[..., Any])


def registers(registry: Registry[Rule], *operators: Any) -> Callable[[F], F]:
    """Decorator: the rule for these operators, which keeps its own type."""

    def decorate(rule: F) -> F:
        registry.register(*operators)(rule)
        return rule

    return decorate


def lowers(*operators: Any) -> Callable[[F], F]:
    """Decorator: the rule for these operators (`torch.ops.aten.relu.default`, ...)."""
    return registers(LOWERINGS, *operators)


def lowers_opaquely(*operators: Any) -> Callable[[F], F]:
    """Decorator: the rule for operators that paths do not cover, read for their channels alone."""
    return registers(OPAQUES, *operators)


def refuse(reason: str) -> NoReturn:
    """Stop the rule: this use is not covered."""
    raise Gap(reason)


aten = torch.ops.aten
_SHAPE_ONLY = {
    *(
        aten.zeros_like.default,
        aten.ones_like.default,
        aten.full_like.default,
        aten.new_zeros.default,
    ),
    *(aten.new_ones.default, aten.new_full.default),
}


def stand_in(name: str, expected: Any) -> Any:
    """A value of the right shape for what could not be lowered, so that reading goes on."""
    if isinstance(expected, tuple | list):
        return Many(lambda i: stand_in(name, expected[i]))
    if isinstance(expected, Tensor) and expected.is_floating_point():
        return Value(name, tuple(expected.shape))
    return Unknown()


def functional(target: Any) -> Any:
    """The out-of-place operator of an in-place one; other targets as they are."""
    schema = getattr(target, "_schema", None)
    # The trailing underscore is only a custom; the schema says whether it writes.
    if schema is None or not schema.is_mutable:
        return target
    packet = getattr(torch.ops.aten, schema.name.split("::")[1].removesuffix("_"), None)
    return getattr(packet, target._overloadname, target) if packet is not None else target


# Operators whose randomness does nothing in evaluation mode; their rules check the mode.
_QUIET = ("dropout", "attention", "rrelu")


RECURRENT = (
    *(aten.gru.input, aten.lstm.input),
    *(aten.rnn_tanh.input, aten.rnn_relu.input),
)
"""Layers that run step by step along a sequence, each step on the state of the one before."""


def draws(target: Any, args: Sequence[Any] = ()) -> bool:
    """Whether an operator draws random numbers, so that every call gives another result."""
    if torch.Tag.nondeterministic_seeded not in getattr(target, "tags", ()):
        return False
    if target in RECURRENT:
        # Dropout lies between layers, and acts while training.
        layers, dropout, training = args[4:7]
        return bool(training and dropout and layers > 1)
    return not any(word in str(target) for word in _QUIET)


def runnable(target: Any, node: fx.Node) -> Any:
    """The operator in a form that also runs on float64.

    Fake quantisation takes its steps in single precision and nothing else, and a value halfway
    between two of them is rounded as in the model's own precision, so it is computed in that
    precision.
    """
    if "fake_quantize" not in str(target):
        return target
    first = node.args[0]
    value = first.meta.get("val") if isinstance(first, fx.Node) else None
    own = value.dtype if isinstance(value, Tensor) else torch.float32

    def function(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        steps = [a.float() if is_floating(a) else a for a in args]
        result = target(x.to(own), *steps, **kwargs)
        return pytree.tree_map(lambda t: t.to(x.dtype) if is_floating(t) else t, result)

    return function


def watches(target: Any) -> bool:
    """Whether an operator observes ranges in the tensors it is given, as training for quantisation
    does: evaluated for an analysis, it would write into the model.
    """
    return "moving_avg_obs" in str(target)


def real(expected: Any) -> bool:
    """Whether a result is floating point; of several, whether the first is."""
    tensors = [t for t in pytree.tree_leaves(expected) if isinstance(t, Tensor)]
    return not tensors or tensors[0].is_floating_point()


def dtype_of(node: fx.Node) -> torch.dtype | None:
    """The floating dtype of a node's result; None for all else."""
    value = node.meta.get("val")
    return value.dtype if isinstance(value, Tensor) and value.is_floating_point() else None


def casts(node: fx.Node) -> bool:
    """A conversion written in the code, even where it changes nothing for this model."""
    packed = (*node.args, *node.kwargs.values())
    return any(isinstance(a, torch.dtype) and a.is_floating_point for a in packed)


def is_shape_only(target: Any) -> bool:
    """Whether only the shape of the operator's input matters, as in zeros_like."""
    return target in _SHAPE_ONLY


def is_floating(value: Any) -> bool:
    """Whether it is a tensor of floating-point numbers."""
    return isinstance(value, Tensor) and value.is_floating_point()
