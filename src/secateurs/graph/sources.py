"""Where the weights of a graph come from: named tensors of the model, and functions of them.

A `Source` is evaluated with a mapping from names to tensors, so that one graph serves any parameter
vector, any dtype, and autograd. Batch norm folds to `γ/√(var+ε)`, a masked weight to `weight_orig ·
mask`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

State: TypeAlias = Mapping[str, Tensor]
"""Parameters, buffers and constants by name."""

Role: TypeAlias = Literal["factor", "offset", "other"]
"""How a named tensor enters a source, entry by entry.

factor: every entry of the source is a multiple of one entry of the tensor (a copy, a scaling, a
reindexing). offset: the source is affine in it, elementwise and aligned (the γ and β in a batch
norm's bias). other: any other function (weight norm, standardised weights).
"""


class Source(ABC):
    """A tensor that does not depend on the network's input."""

    shape: tuple[int, ...]
    roles: Mapping[str, Role]
    floating: bool

    @abstractmethod
    def __call__(self, state: State) -> Tensor:
        """The value for these parameters and buffers."""

    @property
    def names(self) -> tuple[str, ...]:
        """The named tensors it reads."""
        return tuple(self.roles)

    @property
    def direct(self) -> str | None:
        """The name of the tensor when the source is that tensor, unchanged."""
        return None

    @abstractmethod
    def describe(self) -> str:
        """The expression as text; two graphs agree where these agree."""

    def meta(self) -> Tensor:
        """A tensor of this shape without values."""
        return torch.empty(
            self.shape,
            dtype=torch.float64 if self.floating else torch.int64,
            device="meta",
        )


class Named(Source):
    """A parameter, a buffer or a constant of the model."""

    def __init__(
        self, name: str, shape: tuple[int, ...], *, floating: bool = True
    ) -> None:
        self.name, self.shape, self.floating = name, tuple(shape), floating
        self.roles = {name: "factor"}

    def __call__(self, state: State) -> Tensor:
        return state[self.name]

    @property
    def direct(self) -> str | None:
        return self.name

    def describe(self) -> str:
        return self.name


class Computed(Source):
    """A function of other sources: `function(*args)`, with sources anywhere in `args`."""

    def __init__(
        self,
        function: Callable[..., Tensor],
        *args: Any,
        label: str,
        shape: tuple[int, ...],
        roles: Mapping[str, Role],
        floating: bool = True,
    ) -> None:
        self.function, self.args, self.label = function, args, label
        self.shape, self.roles, self.floating = tuple(shape), dict(roles), floating

    def __call__(self, state: State) -> Tensor:
        return self.function(*_substitute(self.args, lambda source: source(state)))

    def describe(self) -> str:
        described = (
            str(_substitute(a, lambda source: source.describe())) for a in self.args
        )
        return f"{self.label}({', '.join(described)})"


def elementwise(
    label: str, function: Callable[..., Tensor], *args: Any, roles: Mapping[str, Role]
) -> Computed:
    """A source of the shape to which the sources among `args` are broadcast."""
    # Told from the shapes: running the function without values took half of the time of reading.
    shapes = [a.shape for a in pytree.tree_leaves(args) if isinstance(a, Source)]
    shape = tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
    return Computed(function, *args, label=label, shape=shape, roles=roles)


def negated(source: Source) -> Source:
    """−source."""
    return elementwise("neg", torch.neg, source, roles=source.roles)


def scaled(source: Source, factor: float) -> Source:
    """factor · source; the source itself for 1."""
    # The source keeps its name, and with it the exact costs of a plain parameter.
    if factor == 1:
        return source
    return elementwise(
        "scale", lambda value: value * factor, source, roles=_dimmed(source, factor)
    )


def product_roles(*sources: Source) -> dict[str, Role]:
    """Roles in an elementwise product: factors stay factors, what enters twice is 'other'."""
    roles: dict[str, Role] = {}
    for source in sources:
        for name, role in source.roles.items():
            # w·w is no multiple of w: entered twice, a tensor is no factor.
            alone = name not in roles and role == "factor"
            roles[name] = "factor" if alone else "other"
    return roles


def _dimmed(source: Source, factor: float) -> Mapping[str, Role]:
    # 0 · w no longer says anything of w.
    return source.roles if factor else dict.fromkeys(source.roles, "other")


def _substitute(args: Any, change: Callable[[Source], Any]) -> Any:
    return pytree.tree_map(lambda a: change(a) if isinstance(a, Source) else a, args)
