"""A model as the chain the theorems speak of: linear maps, and functions of known Lipschitz
constant between them.

An `nn.Sequential` of torch's own modules is walked; any other module is captured as a graph, which
must be one path.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor, nn

from secateurs.errors import CaptureError, ParameterError, TheoryError
from secateurs.graph import Activation, Affine, Node, Pool, State, Structural, capture
from secateurs.misfits import not_real
from secateurs.theory.planning.activations import lipschitz_constant
from secateurs.theory.planning.chain_of_convs import entry_size
from secateurs.theory.planning.windows import averaging_constant, pool_constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A linear map with weights to prune: a matrix, or the kernel of `conv`."""

    name: str
    weight: Tensor
    bias: Tensor | None
    conv: nn.Conv2d | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """Anything between two layers; `apply` takes one input with its batch axis, in float64."""

    name: str
    lipschitz: float
    apply: Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """What keeps a model from being such a chain."""

    text: str


Step: TypeAlias = Layer | Passage
_WIDTHS = "Give plan() the widths instead to reason about a plain chain of that size."


def steps_of(model: nn.Module, size: tuple[int, int] | None = None) -> list[Step]:
    """The steps in the order in which they are applied, or an error that names everything in the
    way. `size`: height and width of the input, for a model with convolutions.
    """
    _check_real(model)
    leaves = list(_leaves(model))
    own = [
        f"{type(leaf).__name__} ({name})"
        for name, leaf in leaves
        # torch's own modules have a table of constants, smooth activations among them,
        # which a graph of primitives does not cover.
        if not type(leaf).__module__.startswith("torch.")
    ]
    if own and has_convolutions(model) and size is None:
        entry_size(None)  # says what is missing
    found = (
        _captured(model, size)
        if own
        else [_module_step(name, leaf) for name, leaf in leaves]
    )
    obstacles = [step.text for step in found if isinstance(step, Obstacle)]
    steps = [step for step in found if not isinstance(step, Obstacle)]
    obstacles += _shared([step for step in steps if isinstance(step, Layer)])
    if obstacles:
        raise TheoryError(
            "the theorems cover one chain of layers with functions of known Lipschitz constant"
            f" between them; this model has: {'; '.join(dict.fromkeys(obstacles))}. {_WIDTHS}"
        )
    _check_values(steps)
    return steps


def has_convolutions(model: nn.Module) -> bool:
    return any(isinstance(module, nn.Conv2d) for module in model.modules())


def _leaves(model: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules that a Sequential applies, nested ones opened; a module used twice comes
    twice.
    """
    if (
        not isinstance(model, nn.Sequential)
        or type(model).forward is not nn.Sequential.forward
    ):
        yield name, model
        return
    for key, child in model._modules.items():
        if child is not None:
            yield from _leaves(child, f"{name}.{key}" if name else key)


def _module_step(name: str, module: nn.Module) -> Step | Obstacle:
    kind = type(module).__name__
    # A subclass that overrides forward is no linear map that is known.
    if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
        return Layer(name=name, weight=module.weight, bias=module.bias)
    if type(module) is nn.Conv2d:
        known = module.groups == 1 and module.padding_mode in ("zeros", "circular")
        padding = f"padding_mode = {module.padding_mode!r}"
        why = f"{kind} with groups = {module.groups}, {padding} ({name})"
        return (
            Layer(name=name, weight=module.weight, bias=module.bias, conv=module)
            if known
            else Obstacle(text=why)
        )
    constant = lipschitz_constant(module)
    if isinstance(constant, str):
        return Obstacle(text=f"{kind} that {constant} ({name or 'the model itself'})")
    # A copy in float64: biases and σ(0) pass through it, and the model stays as it is.
    return Passage(
        name=name, lipschitz=constant, apply=deepcopy(module).eval().double().cpu()
    )


def _captured(
    model: nn.Module, size: tuple[int, int] | None
) -> list[Step | Obstacle]:
    kinds = nn.Conv2d if size else nn.Linear
    first = next(
        (module for module in model.modules() if isinstance(module, kinds)), None
    )
    if first is None:
        raise TheoryError(
            f"{type(model).__name__} has no linear layer from which its input could be told."
            f" {_WIDTHS}"
        )
    still = deepcopy(model).eval().cpu()
    try:
        graph = capture(still, _example(first, size))
    except CaptureError as error:
        raise TheoryError(
            f"{type(model).__name__} cannot be read as a chain of linear layers: {error} Or write"
            f" it as an nn.Sequential, for which more activations are known. {_WIDTHS}"
        ) from error
    state = graph.state(still)
    return [
        _node_step(node, before, state, still)
        for before, node in pairwise(graph.nodes)
    ]


def _example(first: nn.Module, size: tuple[int, int] | None) -> Tensor:
    """Zeros that the first layer takes."""
    if isinstance(first, nn.Conv2d) and size:
        return torch.zeros(1, first.in_channels, *size)
    return torch.zeros(1, int(first.in_features))  # type: ignore[arg-type]


def _node_step(
    node: Node, before: Node, state: State, model: nn.Module
) -> Step | Obstacle:
    # One path: each node reads the one just before it and nothing else.
    if node.inputs != (before.name,):
        return Obstacle(text=f"{node.place}, where paths part or meet")
    if isinstance(node, Activation):
        return Passage(
            name=node.place.module,
            lipschitz=max(1.0, abs(node.slope)),
            apply=node.apply,
        )
    if isinstance(node, Structural) and _rearranges(node, before.shape):
        return Passage(name=node.place.module, lipschitz=1.0, apply=node.function)
    if isinstance(node, Pool):
        constant = pool_constant(node, before.shape)
        return Passage(name=node.place.module, lipschitz=constant, apply=node.apply)
    if isinstance(node, Affine):
        conv = _convolution(node, model)
        if conv is not None:
            return _module_step(node.place.module, conv)
        return _affine_step(node, before.shape, state, dict(model.named_parameters()))
    return Obstacle(text=str(node.place))


def _convolution(node: Affine, model: nn.Module) -> nn.Conv2d | None:
    """The module behind a node, if it is a convolution that pads inside its operation."""
    if not node.place.module:
        return None
    module = model.get_submodule(node.place.module)
    plain = type(module) is nn.Conv2d and module.padding_mode == "zeros"
    return module if plain and isinstance(module, nn.Conv2d) else None


def _affine_step(
    node: Affine, shape: tuple[int, ...], state: State, trained: Iterable[str]
) -> Step | Obstacle:
    weight, bias, axes = (
        node.weight_in(state),
        node.bias_in(state),
        node.operation.axes,
    )
    # A diagonal map stretches by its largest entry.
    if weight is None or (axes is not None and axes.diagonal):
        constant = 1.0 if weight is None else float(weight.detach().abs().max())
        return Passage(
            name=node.place.module,
            lipschitz=constant,
            apply=lambda x: node.apply(x, weight, bias).detach(),
        )
    # Fixed weights, such as an average pool: nothing to prune, only a constant to know.
    if node.weight is not None and not set(node.weight.names) & set(trained):
        fixed = averaging_constant(node, shape, weight)
        return Passage(
            name=node.place.module,
            lipschitz=fixed,
            apply=lambda x: node.apply(x, weight, bias).detach(),
        )
    if axes is None or weight.ndim != 2 or len(node.shape) != 2:
        return Obstacle(text=f"{node.place} on {node.shape}")
    direct = None if node.weight is None else node.weight.direct
    name = (direct or node.place.module).removesuffix(".weight")
    return Layer(
        name=name, weight=weight if axes.weight_out == 0 else weight.T, bias=bias
    )


def _rearranges(node: Structural, shape: tuple[int, ...]) -> bool:
    """Every value goes to one place: norms stay. Seen on values that differ."""
    # From 1 on: a 0 could not be told from padding.
    numbers = torch.arange(1.0, math.prod(shape) + 1, dtype=torch.float64)
    return torch.equal(
        node.function(numbers.view(shape)).flatten().sort().values, numbers
    )


def _shared(layers: list[Layer]) -> list[str]:
    """Weights used by two layers: entries of different layers are assumed independent, and would be
    pruned at once.
    """
    names: dict[int, list[str]] = {}
    for layer in layers:
        # By memory, not by name: tied weights may hang under two names.
        names.setdefault(layer.weight.data_ptr(), []).append(layer.name)
    return [
        f"one weight in {len(n)} places ({', '.join(n)})"
        for n in names.values()
        if len(n) > 1
    ]


def _check_values(steps: Sequence[Step]) -> None:
    bad = [
        f"{step.name or 'the model'!s}: {why}"
        for step in steps
        if (why := _flaw(step))
    ]
    if bad:
        raise ParameterError(
            f"{'; '.join(bad)}. No bound follows from such weights; load or train others."
        )


def _flaw(step: Step) -> str:
    if isinstance(step, Passage):
        return "" if math.isfinite(step.lipschitz) else "NaN or infinite parameters"
    for name, value in (("weight", step.weight), ("bias", step.bias)):
        if value is not None and not bool(torch.isfinite(value).all()):
            return f"NaN or infinite values in {name}"
    return ""


def _check_real(model: nn.Module) -> None:
    bad = [
        f"{name!r} {problem}"
        for name, parameter in model.named_parameters()
        if (problem := not_real(parameter))
    ]
    if bad:
        raise ParameterError(f"{'; '.join(bad[:4])}.")
