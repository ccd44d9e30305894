"""From operators to primitives: the registry of lowering rules.

A rule is a function of a few lines under a decorator; it receives the operator's own arguments, in
which every tensor that depends on the network's input is a `Value` and every other tensor a
`Source`:

    @lowers(aten.relu.default)
    def relu(build, x):
        return build.activation(x, slope=0.0)

It returns a `Value`, or raises `Gap("why")`. Register rules for your own operators the same way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias, TypeVar

import torch
from torch import Tensor

from secateurs.registry import Registry


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


def lowers(*operators: Any) -> Callable[[F], F]:
    """Decorator: the rule for these operators (`torch.ops.aten.relu.default`, ...)."""
    register = LOWERINGS.register(*operators)

    def decorate(rule: F) -> F:
        register(rule)
        return rule

    return decorate


def lowers_opaquely(*operators: Any) -> Callable[[F], F]:
    """Decorator: the rule for operators that paths do not cover, read for their channels alone."""
    register = OPAQUES.register(*operators)

    def decorate(rule: F) -> F:
        register(rule)
        return rule

    return decorate


def refuse(reason: str) -> NoReturn:
    """Stop the rule: this use is not covered."""
    raise Gap(reason)
