"""The six primitives: what a node of a graph can be, and what it computes; `Opaque` is the rest.

* `Input`: a tensor that the user feeds.
* `Affine`: operation(x, weight) + bias; linear layers, convolutions, batch norms, scalings.
* `Activation`: relu or leaky relu.
* `Pool`: the k-th largest value of each window.
* `Structural`: copies, reorders, repeats and zero-pads.
* `Add`: a sum of values with signs.
* `Opaque`: anything else. Only `capture(..., opaque=True)` writes it, for analyses of channels that
  need no formula (`compact`, `prune_channels_`); paths, norms and certificates never see it.

All values have batch size 1. A node knows its inputs by name, its shape and its place in the
user's model.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

# Where the weights of a graph come from: named tensors of the model, and functions of them.
#
# A `Source` is evaluated with a mapping from names to tensors, so that one graph serves any
# parameter vector, any dtype, and autograd. Batch norm folds to `γ/√(var+ε)`, a masked weight to
# `weight_orig · mask`.

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

    def __init__(self, name: str, shape: tuple[int, ...], *, floating: bool = True) -> None:
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
        described = (str(_substitute(a, lambda source: source.describe())) for a in self.args)
        return f"{self.label}({', '.join(described)})"


def elementwise(
    label: str, function: Callable[..., Tensor], *args: Any, roles: Mapping[str, Role]
) -> Computed:
    """A source of the shape to which the sources among `args` are broadcast."""
    # From the shapes alone: running the function without values took half of the time of reading.
    shapes = [a.shape for a in pytree.tree_leaves(args) if isinstance(a, Source)]
    shape = tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
    return Computed(function, *args, label=label, shape=shape, roles=roles)


def negate(source: Source) -> Source:
    """−source."""
    return elementwise("neg", torch.neg, source, roles=source.roles)


def scale_source(source: Source, factor: float) -> Source:
    """factor · source; the source itself for 1."""
    # The source keeps its name, and with it the exact costs of a plain parameter.
    if factor == 1:
        return source
    return elementwise(
        "scale", lambda value: value * factor, source, roles=_roles_of_product(source, factor)
    )


def _roles_of_product(source: Source, factor: float) -> Mapping[str, Role]:
    # 0 · w no longer depends on w.
    return source.roles if factor else dict.fromkeys(source.roles, "other")


def _substitute(args: Any, change: Callable[[Source], Any]) -> Any:
    return pytree.tree_map(lambda a: change(a) if isinstance(a, Source) else a, args)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a node stands in the user's model."""

    module: str
    kind: str
    operation: str

    def __str__(self) -> str:
        owner = f"{self.module or 'the model itself'} ({self.kind})" if self.kind else self.module
        return f"{self.operation} at {owner}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Which dimensions of x, weight and y are channels: y[.., o, ..] += weight[o, i] x[.., i, ..].

    With groups, the channels of x and y fall into consecutive groups. `diagonal`: y = weight · x,
    elementwise.
    """

    x: int = 1
    y: int = 1
    weight_in: int = 1
    weight_out: int = 0
    groups: int = 1
    diagonal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sliding:
    """How a window moves over a map of two dimensions (height, width).

    `groups`: those of a convolution whose weight is the kernel. None: a plain sum over the window
    of each channel, multiplied by the weight afterwards.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int | None = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Bilinear:
    """A map bilinear in (x, weight), with the shape in which a bias is added to its result.

    `sliding`: the window behind it, where it is a convolution or an average of two dimensions.
    """

    label: str
    function: Callable[[Tensor, Tensor], Tensor]
    bias_shape: tuple[int, ...] | None = None
    axes: Axes | None = None
    sliding: Sliding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A tensor the user feeds."""

    name: str
    shape: tuple[int, ...]
    place: Place
    index: int
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """y = operation(x, weight) + bias. Without weight: y = x + bias. Without inputs: y = bias."""

    name: str
    shape: tuple[int, ...]
    place: Place
    inputs: tuple[str, ...]
    operation: Bilinear
    weight: Source | None = None
    bias: Source | None = None
    bias_scaled_by: tuple[str, ...] | None = (
        # Stated by the rule, since it cannot be read off a function: a batch norm's
        # bias scales with β and the running mean.
        None  # multiplying these named tensors by λ multiplies the bias by λ
    )

    def weight_in(self, state: State) -> Tensor | None:
        """The weight for these parameters; None where the node only adds a bias."""
        return None if self.weight is None else self.weight(state)

    def bias_in(self, state: State) -> Tensor | None:
        """The bias for these parameters."""
        return None if self.bias is None else self.bias(state)

    def linear(self, x: Tensor, weight: Tensor | None) -> Tensor:
        """The part linear in x."""
        return x if weight is None else self.operation.function(x, weight)

    def spread(self, bias: Tensor) -> Tensor:
        """The bias in a shape that broadcasts over the result."""
        return (
            bias if self.operation.bias_shape is None else bias.reshape(self.operation.bias_shape)
        )

    def apply(self, x: Tensor | None, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """The whole map, with given weight and bias."""
        if x is None:
            if bias is None:
                # A fault of a rule, not of the user.
                raise ValueError(f"{self.name} has neither input nor bias.")
            return self.spread(bias).expand(self.shape)
        y = self.linear(x, weight)
        return y if bias is None else y + self.spread(bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """max(x, 0) for slope 0, else leaky: x where x > 0, slope · x elsewhere."""

    name: str
    shape: tuple[int, ...]
    place: Place
    inputs: tuple[str, ...]
    slope: float = 0.0

    def apply(self, x: Tensor) -> Tensor:
        """The activation itself."""
        return torch.relu(x) if self.slope == 0 else torch.nn.functional.leaky_relu(x, self.slope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The k-th largest value of each window of one input, k = `rank`; padding is never chosen.

    Attributes:
        maximum: The largest of each window, whatever the rank: bounds go through it.
        total: The sum over the same windows, to which padding adds nothing.
        chosen: The k-th largest, None for k = 1.
    """

    name: str
    shape: tuple[int, ...]
    place: Place
    inputs: tuple[str, ...]
    maximum: Callable[[Tensor], Tensor]
    total: Callable[[Tensor], Tensor]
    detail: str = ""
    rank: int = 1
    chosen: Callable[[Tensor], Tensor] | None = None

    def apply(self, x: Tensor) -> Tensor:
        """What the node computes: the k-th largest of each window."""
        return self.maximum(x) if self.chosen is None else self.chosen(x)


@dataclass(frozen=True, slots=True, kw_only=True)
class Structural:
    """Copies, reorders, repeats or zero-pads values; `function` takes the inputs in order, of any
    dtype.
    """

    name: str
    shape: tuple[int, ...]
    place: Place
    inputs: tuple[str, ...]
    function: Callable[..., Tensor]
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """Σ sign · input, all of one shape."""

    name: str
    shape: tuple[int, ...]
    place: Place
    inputs: tuple[str, ...]
    signs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opaque:
    """Any other function of values, described by which dimensions it carries through.

    Attributes:
        carried: For each dimension of each input, the dimension of the result that has the same
            index; None where the entries along it are mixed.
        zeros: The inputs each of which makes the result zero by being zero: both factors of a
            product, the values of an attention.
        elementwise: Whether each entry of the result depends on one entry of each input.
        rising: Whether it is elementwise, of straight pieces, and never falls in any input.
        levels: Whether it is a norm: each entry from its own of the one input, and from what all
            entries have in common (mean and spread) along the dimensions that are mixed.
    """

    name: str
    shape: tuple[int, ...]
    place: Place
    inputs: tuple[str, ...]
    function: Callable[..., Tensor]
    carried: tuple[tuple[int | None, ...], ...]
    zeros: tuple[int, ...] = ()
    elementwise: bool = False
    rising: bool = False
    levels: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """A conversion of an activation to another floating dtype, written in the model's code."""

    place: Place
    source: torch.dtype
    target: torch.dtype

    @property
    def rounds(self) -> bool:
        """Whether the target holds fewer digits than the source, or a smaller range."""
        one, two = torch.finfo(self.target), torch.finfo(self.source)
        # bfloat16 to float16 gains digits and loses range: either makes it a rounding.
        return one.eps > two.eps or one.max < two.max

    def __str__(self) -> str:
        return f"{self.place}: {self.source} to {self.target}".replace("torch.", "")


Node: TypeAlias = Input | Affine | Activation | Pool | Structural | Add | Opaque
