"""The graph that every analysis reads: nodes of six kinds, from the inputs to one output."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from secateurs.base.parameters import aliases, all_finite, unwrap
from secateurs.errors import ParameterError, StructureMismatch
from secateurs.graph.primitives import (
    Activation,
    Add,
    Affine,
    Cast,
    Input,
    Node,
    Opaque,
    Place,
    Pool,
    Source,
    Structural,
)

# An operation's name that holds two of these is meant by the first.
_ENDINGS: dict[str, Callable[..., Tensor]] = {
    "log_softmax": torch.log_softmax,
    "softmax": torch.softmax,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A map behind the output of a graph, which no flow carries.

    Attributes:
        name: "softmax", "log_softmax", "sigmoid" or "tanh".
        dim: The dimension that it mixes, that of the batch counted; None for none.
        inner: The shape of what it reads, a batch of one.
        shape: That of what the model returns, the same entries in the same order.
    """

    name: str
    dim: int | None
    inner: tuple[int, ...]
    shape: tuple[int, ...]

    def __call__(self, x: Tensor) -> Tensor:
        """The map of outputs that are flat per input."""
        single = x.reshape(len(x), *self.inner)
        function = _ENDINGS[self.name]
        y = function(single) if self.dim is None else function(single, self.dim + 1)
        return y.flatten(1)


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A captured model: nodes in topological order, from `inputs` to `output`.

    Attributes:
        parameters, buffers: The names the graph reads, with their shapes; tied parameters under
            their first name.
        constants: Tensors and numbers written in the model's code.
        output_name: Which of the model's outputs this is ('' when there is only one).
        outputs: The names of all outputs the model returns.
        casts: Changes of precision inside the model; the graph is of real numbers and does not
            round there.
        decided: Indices that the model computes from its floating-point tensors, with the values
            that were read: other values need another graph.
        alone: In which way the samples of a batch act on each other; "" where they do not. The
            graph is about each input fed alone.
        ending: What the model does with the output of the graph before it returns it.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Input, ...]
    output: str
    output_name: str = ""
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    buffers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    casts: tuple[Cast, ...] = ()
    decided: tuple[tuple[Source, Tensor], ...] = ()
    alone: str = ""
    ending: Ending | None = None

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
        # Names are those inside of torch.compile and DataParallel.
        found = tensors_of(unwrap(model))
        self._check(found, kind_of(model))
        # Constants follow the parameters to their device.
        device = next((found[name].device for name in self.parameters), torch.device("cpu"))
        state = {name: found[name] for name in (*self.parameters, *self.buffers)}
        state |= {name: value.to(device) for name, value in self.constants.items()}
        if not self.decides_the_same(found):
            raise StructureMismatch(
                f"{kind_of(model)} computes an index from {', '.join(self.deciding[:4])}, and"
                " their values choose other entries than when the graph was captured. Capture the"
                " model again."
            )
        if dtype is None:
            return state
        # A cast to the dtype a tensor has returns it as it is, attached to autograd even where
        # gradients are disabled; numbers read from it would then warn.
        if not torch.is_grad_enabled():
            state = {name: value.detach() for name, value in state.items()}
        return {
            # Integers stay: they are indices, and float64 would not be one.
            name: v.to(dtype) if v.is_floating_point() else v
            for name, v in state.items()
        }

    @property
    def deciding(self) -> list[str]:
        """The parameters and buffers that indices are computed from."""
        return sorted({n for source, _ in self.decided for n in source.names})

    def decides_the_same(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether the indices computed from these tensors are those that were read."""
        values = {**tensors, **self.constants}
        # Shapes and missing names are reported where the state is read.
        try:
            now = [(source(values), then) for source, then in self.decided]
        except (KeyError, RuntimeError, IndexError):
            return False
        return all(torch.equal(one.to(then.device), then) for one, then in now)

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
            if found[n].is_floating_point()
            # One NaN would turn every bound into NaN, or into 0 where a maximum drops
            # it.
            and not all_finite(found[n])
        ]
        if bad:
            raise ParameterError(
                f"{', '.join(bad[:4])} of {model} hold(s) NaN or infinite values; no bound follows"
                " from them. Load finite weights."
            )

    def without_ending(self) -> "Graph":
        """The graph in front of the softmax, sigmoid or tanh at its end, which was read as one
        node; the graph itself where there is none.
        """
        node = self.by_name[self.output]
        # Behind the map there are only other shapes of the same entries.
        while isinstance(node, Structural) and len(node.inputs) == 1:
            node = self.by_name[node.inputs[0]]
        operation = node.place.operation if isinstance(node, Opaque) else ""
        name = next((name for name in _ENDINGS if name in operation), None)
        if not isinstance(node, Opaque) or name is None:
            return self
        mixed = [i for i, dim in enumerate(node.carried[0]) if dim is None]
        shape = self.by_name[self.output].shape
        return replace(
            self,
            nodes=self.nodes[: self.nodes.index(node)],
            output=node.inputs[0],
            ending=Ending(
                name=name,
                dim=mixed[0] if mixed else None,
                inner=node.shape,
                # Without a dimension for the batch it would say nothing of one input.
                shape=shape if shape[:1] == (1,) else node.shape,
            ),
        )

    def describe(self) -> str:
        """One line per node; graphs with the same text have the same structure."""
        lines = [*map(_line, self.nodes), f"output {self.output}"]
        return "\n".join(lines if self.ending is None else [*lines, f"then {self.ending}"])


def affines(graph: Graph) -> list[Affine]:
    """The affine nodes in order."""
    return [node for node in graph.nodes if isinstance(node, Affine)]


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by each of their names."""
    # remove_duplicate=False: a tied tensor answers to each of its names.
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
        case Opaque():
            return f"{head} {node.place.operation} {node.carried}"


# Our own modules around a user's model, and how messages name what is inside.


class Wrapper(nn.Module):
    """A model inside a module of this library, which users never see."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        # A new module begins in training mode, which the model inside need not be in.
        self.training = inner.training


def kind_of(model: nn.Module) -> str:
    """The class of the user's own model.

    >>> kind_of(Wrapper(nn.Linear(1, 1)))
    'Linear'
    """
    return type(_own(model)).__name__


def own_name(name: str, model: nn.Module) -> str:
    """What a module or tensor of this model is called in the user's own.

    >>> own_name("inner.weight", Wrapper(nn.Linear(1, 1)))
    'weight'
    """
    while isinstance(model, Wrapper):
        name = "" if name == "inner" else name.removeprefix("inner.")
        model = model.inner
    return name


def own_place(place: Place, model: nn.Module) -> Place:
    """A place in the user's own model."""
    module = own_name(place.module, model)
    return replace(place, module=module, kind=place.kind if module else kind_of(model))


def _own(model: nn.Module) -> nn.Module:
    return _own(model.inner) if isinstance(model, Wrapper) else model
