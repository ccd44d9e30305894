"""What a mapping of parameters is, and what chooses among them."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from torch import Tensor, nn

Params: TypeAlias = Mapping[str, Tensor]
"""Tensors by parameter name."""


Predicate: TypeAlias = (
    "Callable[[str, nn.Parameter], bool] | "
    "Callable[[str, nn.Parameter, nn.Module], bool]"
)
"""`(name, parameter) -> bool`, everywhere; a third argument takes the module that holds the
parameter, wherever a model is given.
"""


Where: TypeAlias = (
    "str | type[nn.Module] | Predicate | "
    "Sequence[str | type[nn.Module] | Predicate] | None"
)
"""What to choose: a glob of parameter names, a module type, a predicate, a sequence of these (any
may match), or None for the default rule. A glob that starts with '!' excludes.
"""
