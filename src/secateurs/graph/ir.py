"""The graph of six primitives that every analysis reads.

==========  =========================================================================
All values have batch size 1. A node knows its inputs by name, its shape and its place in the user's
model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor, nn

from secateurs.errors import ParameterError, StructureMismatch
from secateurs.graph.sources import Source, State
from secateurs.parameters import aliases


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a node stands in the user's model."""

    module: str
    kind: str
    operation: str

    def __str__(self) -> str:
        owner = (
            f"{self.module or 'the model itself'} ({self.kind})"
            if self.kind
            else self.module
        )
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
class Bilinear:
    """A map bilinear in (x, weight), with the shape in which a bias is added to its result."""

    label: str
    function: Callable[[Tensor, Tensor], Tensor]
    bias_shape: tuple[int, ...] | None = None
    axes: Axes | None = None


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
            bias
            if self.operation.bias_shape is None
            else bias.reshape(self.operation.bias_shape)
        )

    def apply(
        self, x: Tensor | None, weight: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        """The whole map, with given weight and bias."""
        if x is None:
            if bias is None:
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
        return (
            torch.relu(x)
            if self.slope == 0
            else torch.nn.functional.leaky_relu(x, self.slope)
        )


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
class Cast:
    """A conversion of an activation to another floating dtype, written in the model's code."""

    place: Place
    source: torch.dtype
    target: torch.dtype

    @property
    def rounds(self) -> bool:
        """Whether the target holds fewer digits than the source, or a smaller range."""
        one, two = torch.finfo(self.target), torch.finfo(self.source)
        return one.eps > two.eps or one.max < two.max

    def __str__(self) -> str:
        return f"{self.place}: {self.source} to {self.target}".replace("torch.", "")


Node: TypeAlias = Input | Affine | Activation | Pool | Structural | Add


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A captured model: nodes in topological order, from `inputs` to `output`.

    Attributes:
        parameters, buffers: The names the graph reads, with their shapes; tied parameters under
            their first name.
        constants: Tensors and numbers written in the model's code.
        output_name: Which of the model's outputs this is ('' when there is only one).
        casts: Changes of precision inside the model; the graph is of real numbers and does not
            round there.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Input, ...]
    output: str
    output_name: str = ""
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    buffers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    casts: tuple[Cast, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, Node]:
        """The nodes by their names."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def consumers(self) -> dict[str, tuple[str, ...]]:
        """For each node the nodes that read it, once per use."""
        readers: dict[str, list[str]] = {node.name: [] for node in self.nodes}
        for node in self.nodes:
            for name in node.inputs:
                readers[name].append(node.name)
        return {name: tuple(users) for name, users in readers.items()}

    def state(
        self, model: nn.Module, *, dtype: torch.dtype | None = torch.float64
    ) -> dict[str, Tensor]:
        """The model's parameters and buffers that the graph reads, and the constants, cast to one
        dtype.

        They stay attached to autograd when gradients are enabled. `dtype=None` keeps each tensor's
        own.
        """
        found = _tensors(unwrapped(model))
        self._check(found, type(model).__name__)
        device = next(
            (found[name].device for name in self.parameters), torch.device("cpu")
        )
        state = {name: found[name] for name in (*self.parameters, *self.buffers)}
        state |= {name: value.to(device) for name, value in self.constants.items()}
        if dtype is None:
            return state
        return {
            name: v.to(dtype) if v.is_floating_point() else v
            for name, v in state.items()
        }

    def _check(self, found: Mapping[str, Tensor], model: str) -> None:
        wanted = {**self.parameters, **self.buffers}
        wrong = [
            n
            for n, shape in wanted.items()
            if n not in found or tuple(found[n].shape) != tuple(shape)
        ]
        if wrong:
            raise StructureMismatch(
                f"{model} lacks {len(wrong)} tensor(s) of the graph, or has them in another shape: "
                f"{', '.join(wrong[:4])}. Capture this model itself."
            )
        bad = [
            n
            for n in wanted
            if found[n].is_floating_point() and not bool(torch.isfinite(found[n]).all())
        ]
        if bad:
            raise ParameterError(
                f"{', '.join(bad[:4])} of {model} hold(s) NaN or infinite values; no bound follows"
                " from them. Load finite weights."
            )

    def describe(self) -> str:
        """One line per node; graphs with the same text have the same structure."""
        return "\n".join(_line(node) for node in self.nodes) + f"\noutput {self.output}"


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile`, DataParallel and DistributedDataParallel."""
    inner = getattr(model, "_orig_mod", None)
    if isinstance(inner, nn.Module):
        return unwrapped(inner)
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrapped(model.module)
    return model


def affines(graph: Graph) -> list[Affine]:
    """The affine nodes in order."""
    return [node for node in graph.nodes if isinstance(node, Affine)]


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    found: dict[str, Tensor] = dict(model.named_buffers(remove_duplicate=False))
    found.update(model.named_parameters(remove_duplicate=False))
    for alias, first in aliases(model).items():
        found[alias] = found[first]
    return found


def _line(node: Node) -> str:
    head = f"{node.name} = {type(node).__name__}{node.inputs}{node.shape}"
    match node:
        case Affine():
            weight = node.weight.describe() if node.weight else ""
            return (
                f"{head} {node.operation.label} [{weight}]"
                f" [{node.bias.describe() if node.bias else ''}]"
            )
        case Activation():
            return f"{head} slope {node.slope}"
        case Pool() | Structural():
            return f"{head} {node.place.operation} {node.detail}"
        case Add():
            return f"{head} {node.signs}"
        case Input():
            return head
