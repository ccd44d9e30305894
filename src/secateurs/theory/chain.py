"""The chain of layers that `plan` speaks about: widths, ranges of the entries, what is between
them.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from secateurs.base.parameters import not_real
from secateurs.errors import ArgumentError, CaptureError, ParameterError, TheoryError
from secateurs.graph import Activation, Affine, Node, Pool, State, Structural, capture
from secateurs.theory.convolutions import ConvMap, has_explicit_bound, module_map, per_axis
from secateurs.theory.guarantee import Between, check_whole, check_widths
from secateurs.theory.magnitude import linear_layers
from secateurs.theory.random_matrices import RandomLayer, half_spectrum

# What a chain is made of: layers, passages between them, and obstacles.

_TINY = torch.finfo(torch.float64).tiny
"""What a layer of zeros is divided by, and stays zero."""


@dataclass(frozen=True, kw_only=True)
class ChainLayer:
    """A linear map with weights to prune: a matrix, or the kernel of `conv`; one that is given by
    its sizes alone has an empty `weight`.

    Of a convolution: its `taps`, the `frequencies` of its map, and `repeats`, a factor on the norm
    for circular padding beyond "same".
    """

    name: str
    weight: Tensor = field(default_factory=lambda: torch.empty(0))
    bias: Tensor | None = None
    conv: nn.Conv2d | None = None
    taps: int = 1
    frequencies: int = 1
    repeats: float = 1.0

    @property
    def read(self) -> bool:
        """Whether it was read off a model, and its weights can be looked up."""
        return self.weight.numel() > 0

    @property
    def scale(self) -> float:
        """K of the entries' range ±K/√(taps · max(rows, columns)), 1 where it is not known."""
        return float(self.weight.abs().max()) * self._root if self.read else 1.0

    @property
    def deviation(self) -> float:
        """K where the unit is the root mean square: around zero, the mean of the law assumed."""
        return float(self.weight.double().square().mean().sqrt()) * self._root if self.read else 1.0

    @property
    def _root(self) -> float:
        """√(taps · max(rows, columns))."""
        return math.sqrt(self.weight[0, 0].numel() * max(self.weight.shape[:2]))

    @cached_property
    def sizes(self) -> Tensor:
        """The sorted magnitudes of the entries, of a convolution the ℓ¹ norms of the filters, in
        units of the largest entry.
        """
        sizes = self.weight.double().abs()
        found = sizes if self.conv is None else sizes.flatten(2).sum(2)
        return found.flatten().sort().values / sizes.max().clamp_min(_TINY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """Anything between two layers; `apply` takes one input with its batch axis, in float64."""

    name: str
    lipschitz: float
    apply: Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """The reason why a model is no such chain."""

    text: str


ChainStep: TypeAlias = ChainLayer | Passage
GIVE_WIDTHS = "Give plan() the widths instead to reason about a plain chain of that size."


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Layers of widths (channels) d_0…d_l, and what lies `between` them (first: before layer 1).

    The first `convs` layers are convolutions, and linear ones follow; `last_map` has the positions
    of the maps that the first linear layer sees.
    """

    widths: tuple[int, ...]
    layers: tuple[ChainLayer, ...]
    between: tuple[Between, ...] | None = None
    convs: int = 0
    last_map: int = 1

    def inner(self, widths: Sequence[int]) -> list[int]:
        """How many entries (filters) each layer has that is pruned: not the first, not the last,
        and of a network with convolutions only these.
        """
        stop = self.convs + 1 if self.convs else len(widths) - 1
        return [a * b for a, b in pairwise(widths[1:stop])]

    def random_layers(self, widths: Sequence[int], scales: Sequence[float]) -> list[RandomLayer]:
        """The layers at other widths; the linear layers behind convolutions see the same maps."""
        if self.convs == 1:
            raise TheoryError("a chain of fewer than two convolutions has no inner one to prune.")
        found = [
            RandomLayer(
                rows=rows,
                columns=columns,
                # `repeats` is the norm of a circular padding that repeats entries.
                bound=layer.repeats * scale / math.sqrt(layer.taps * max(rows, columns)),
                taps=layer.taps,
                frequencies=layer.frequencies,
            )
            for layer, (columns, rows), scale in zip(
                self.layers[: self.convs], pairwise(widths), scales, strict=False
            )
        ]
        behind = [widths[self.convs] * self.last_map, *widths[self.convs + 1 :]]
        return [*found, *linear_layers(behind, scales[self.convs :])]


# Lipschitz constants of torch's modules without weights of their own to prune, in evaluation mode
# and the 2-norm.


def lipschitz_constant(module: nn.Module) -> float | str:
    """The module's Lipschitz constant, or in words why none is known.

    >>> lipschitz_constant(nn.LeakyReLU(3.0)), lipschitz_constant(nn.LayerNorm(8))
    (3.0, 'has no known Lipschitz constant')
    """
    # The exact type: a subclass may compute anything.
    rule = LIPSCHITZ.get(type(module))
    return "has no known Lipschitz constant" if rule is None else rule(module)


def _always(constant: float) -> Callable[[Any], float | str]:
    return lambda module: constant


def _softplus(module: nn.Softplus) -> float | str:
    # Above the threshold torch returns x itself, a jump of log(1 + e^−threshold)/β.
    return 1.0 if module.threshold >= 20 else f"jumps at its threshold of {module.threshold:g}"


def _pool(module: nn.MaxPool2d | nn.AvgPool2d) -> float | str:
    # Windows that do not overlap: each entry counts once, so the constant is 1. For
    # others `pool_constant` counts how often.
    apart = all(
        s >= k for s, k in zip(_pair(module.stride), _pair(module.kernel_size), strict=True)
    )
    if getattr(module, "return_indices", False):
        return "returns indices"
    plain = (
        getattr(module, "dilation", 1) in (1, (1, 1))
        and getattr(module, "divisor_override", None) is None
    )
    return 1.0 if apart and plain else "overlaps, is dilated or has its own divisor"


def _batch_norm(module: nn.BatchNorm1d) -> float | str:
    if module.running_var is None:
        return "divides by the statistics of the batch"
    # In evaluation mode batch norm is a diagonal map: its norm is the largest slope.
    slope = (module.running_var.double() + module.eps).rsqrt()
    return float((slope if module.weight is None else slope * module.weight.detach()).abs().max())


def _pair(size: int | tuple[int, ...]) -> tuple[int, ...]:
    return (size, size) if isinstance(size, int) else tuple(size)


def _leaky(slope: float) -> float:
    return max(1.0, abs(slope))


LIPSCHITZ: dict[type[nn.Module], Callable[[Any], float | str]] = {
    **dict.fromkeys((nn.Identity, nn.Flatten, nn.Unflatten), _always(1.0)),
    **dict.fromkeys((nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), _always(1.0)),
    **dict.fromkeys((nn.AlphaDropout, nn.FeatureAlphaDropout), _always(1.0)),
    **dict.fromkeys(
        (nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.Tanh, nn.Softsign, nn.Softshrink),
        _always(1.0),
    ),
    **dict.fromkeys((nn.Tanhshrink, nn.LogSigmoid), _always(1.0)),
    # For x < 0 CELU has the slope e^{x/α}, which grows without end where α < 0.
    nn.CELU: lambda module: 1.0 if module.alpha > 0 else "grows without bound for alpha < 0",
    nn.Sigmoid: _always(1 / 4),
    nn.Hardsigmoid: _always(1 / 6),
    nn.Softplus: _softplus,
    nn.ELU: lambda module: _leaky(module.alpha),
    # scale · α, the slope just left of 0, is above the slope `scale` on the right.
    nn.SELU: _always(1.0507009873554805 * 1.6732632423543772),
    nn.GELU: _always(1.13),  # largest slope 1.1289 (erf), 1.1290 (tanh)
    nn.SiLU: _always(1.1),  # 1.0998
    nn.Mish: _always(1.089),  # 1.0885
    nn.Hardswish: _always(1.5),
    nn.LeakyReLU: lambda module: _leaky(module.negative_slope),
    nn.RReLU: lambda module: _leaky((module.lower + module.upper) / 2),
    nn.PReLU: lambda module: _leaky(float(module.weight.detach().abs().max())),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d), _batch_norm),
    **dict.fromkeys((nn.MaxPool2d, nn.AvgPool2d), _pool),
}
"""A rule for each exact type; a new type is one entry."""


# Lipschitz constants, in the 2-norm, of what a captured graph holds between two layers.


def pool_constant(node: Pool, shape: tuple[int, ...]) -> float:
    """√c where an entry lies in at most c windows: |max x − max y| ≤ the largest |x_u − y_u| of the
    window, and so for the k-th largest.
    """
    with torch.enable_grad():
        x = torch.ones(shape, dtype=torch.float64, requires_grad=True)
        (uses,) = torch.autograd.grad(node.total(x).sum(), x)
    return math.sqrt(float(uses.max()))


def averaging_constant(node: Affine, shape: tuple[int, ...], weight: Tensor) -> float:
    """√(largest row sum · largest column sum) of |W| (Schur's test), for fixed weights."""
    with torch.enable_grad():
        x = torch.ones(shape, dtype=torch.float64, requires_grad=True)
        y = node.linear(x, weight.detach().abs())
        (columns,) = torch.autograd.grad(y.sum(), x)
    return math.sqrt(float(y.detach().max()) * float(columns.max()))


# An affine node of a captured graph as a step: a layer, or a passage of known constant.


def convolution_of(node: Affine, model: nn.Module) -> nn.Conv2d | None:
    """The module behind a node, if it is a convolution that pads inside its operation."""
    if not node.place.module:
        return None
    module = model.get_submodule(node.place.module)
    plain = type(module) is nn.Conv2d and module.padding_mode == "zeros"
    return module if plain and isinstance(module, nn.Conv2d) else None


def affine_step(
    node: Affine, shape: tuple[int, ...], state: State, trained: Iterable[str]
) -> ChainStep | Obstacle:
    """A layer where the node has weights to prune, else a passage of known constant."""
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
    matrix = weight.detach() if axes.weight_out == 0 else weight.detach().T
    return ChainLayer(name=name, weight=matrix, bias=bias)


# Sizes of maps in a chain of convolutions, and the circular convolution that contains each of
# them.


def entry_size(input_size: int | Sequence[int] | None) -> tuple[int, ...]:
    """Height and width of the input."""
    if input_size is None:
        raise ArgumentError(
            "this model has convolutions: give input_size=, the height and width of its input."
        )
    return per_axis("input_size", input_size, (0, 0))


def map_of(layer: ChainLayer, shape: Sequence[int]) -> ConvMap:
    """A convolution on maps of this shape."""
    conv = layer.conv
    if conv is None or len(shape) != 4 or shape[1] != conv.in_channels:
        raise TheoryError(
            f"the layers do not form one chain: {layer.name} takes"
            f" {layer.weight.shape[1]} channels and"
            f" would get the shape {tuple(shape[1:])}."
        )
    return module_map(conv, shape[2:], name=layer.name)


# Zero and the biases on their way through a chain: what the theorems call σ_k(b_k).


def walk(
    steps: Sequence[ChainStep], x: Tensor
) -> tuple[tuple[Between, ...], list[tuple[int, ...]]]:
    """What lies between the layers, and the shape that each of them takes (last: that of the
    output).
    """
    found, shapes, passed = [], [], _Passed(width=x.shape[1], bias=x, zero=x)
    for step in steps:
        if isinstance(step, ChainLayer):
            found.append(passed.between())
            shapes.append(tuple(passed.bias.shape))
            bias = _bias(step, passed.bias)
            passed = _Passed(width=step.weight.shape[0], bias=bias, zero=torch.zeros_like(bias))
        else:
            passed = passed.through(step)
    return (*found, passed.between()), [*shapes, tuple(passed.bias.shape)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Passed:
    """A layer's bias, and zero, as far as they have passed through what follows the layer."""

    width: int
    bias: Tensor
    zero: Tensor
    lipschitz: float = 1.0

    def through(self, step: Passage) -> "_Passed":
        try:
            return _Passed(
                width=self.width,
                bias=step.apply(self.bias),
                zero=step.apply(self.zero),
                lipschitz=self.lipschitz * step.lipschitz,
            )
        except (RuntimeError, ValueError) as error:
            raise TheoryError(
                f"{step.name} does not take the shape {tuple(self.bias.shape[1:])}: {error}"
            ) from error

    def between(self) -> Between:
        rest = float(self.zero.norm())
        # The part of σ(b) that the bias causes, as the triangle inequality has it; the
        # rest is σ(0).
        added = max(0.0, float(self.bias.norm()) - rest)
        return Between(lipschitz=self.lipschitz, bias=added, rest=rest / math.sqrt(self.width))


def _bias(layer: ChainLayer, x: Tensor) -> Tensor:
    """The output of the layer at input zero."""
    rows = layer.weight.shape[0]
    shape = (1, rows) if layer.conv is None else (1, rows, *map_of(layer, x.shape).outputs)
    # Here a wrong input_size shows: the first linear layer gets another number of
    # features.
    if layer.conv is None and x.numel() != layer.weight.shape[1]:
        raise TheoryError(
            f"the layers do not form one chain: {layer.name or 'the linear layer'} takes"
            f" {layer.weight.shape[1]} features and would get {x.numel()} (shape"
            f" {tuple(x.shape[1:])}). With convolutions, check input_size."
        )
    bias = (
        torch.zeros(rows, dtype=torch.float64) if layer.bias is None else layer.bias.double().cpu()
    )
    return bias.view(1, -1, *[1] * (len(shape) - 2)).expand(shape).clone()


# Convolutions with linear layers behind them, read as one chain.


def convolutional(
    steps: Sequence[ChainStep],
    layers: Sequence[ChainLayer],
    input_size: int | Sequence[int] | None,
) -> Chain:
    """The chain of these steps, maps followed from the input on."""
    convs = [layer for layer in layers if layer.conv is not None]
    linear = [layer for layer in layers if layer.conv is None]
    if not linear or list(layers[: len(convs)]) != convs:
        raise TheoryError(
            "plan() reads convolutions with linear layers behind them, and this model has none"
            " there, or a convolution behind one. Call theory.theorem_3_explicit for a network of"
            " its sizes."
        )
    first = torch.zeros(1, convs[0].weight.shape[1], *entry_size(input_size), dtype=torch.float64)
    between, shapes = walk(steps, first)
    # Behind the walk, which names the layer that does not take what it gets.
    if not all(a.weight.shape[0] == b.weight.shape[1] for a, b in pairwise(convs)):
        raise TheoryError("the convolutions of this model do not form one chain.")
    placed = [on_map(layer, shape) for layer, shape in zip(convs, shapes, strict=False)]
    # Positions per channel of what the flattening hands on.
    last_map = linear[0].weight.shape[1] // convs[-1].weight.shape[0]
    return Chain(
        widths=widths_of(layers),
        layers=(*placed, *linear),
        between=between,
        convs=len(convs),
        last_map=last_map,
    )


def on_map(layer: ChainLayer, shape: Sequence[int]) -> ChainLayer:
    """The layer with the circular convolution that contains it: a stride only leaves outputs out.

    An output of that one can occur more than once among those of this one: padding of reach − 1
    rows in all ("same") gives every output once; more wraps around again, less leaves some out.
    """
    conv, taps = map_of(layer, shape), layer.weight[0, 0].numel()
    circular = conv.mode == "circular"
    return replace(
        layer,
        taps=taps,
        frequencies=half_spectrum(conv.size if circular else conv.padded, taps),
        repeats=math.sqrt(math.prod(map(math.ceil, conv.turns))) if circular else 1.0,
    )


def widths_of(layers: Sequence[ChainLayer]) -> tuple[int, ...]:
    return (layers[0].weight.shape[1], *(layer.weight.shape[0] for layer in layers))


# Chains that are given by their widths alone.


def chain_of_widths(widths: object) -> Chain:
    """The chain of these widths, each layer with K = 1."""
    if isinstance(widths, str | bytes) or not isinstance(widths, Iterable):
        raise ArgumentError(
            f"{widths!r} is neither a model nor widths such as [784, 300, 300, 10]."
        )
    # Read once: an iterator is empty afterwards.
    found = tuple(widths)
    check_widths(found)
    layers = tuple(ChainLayer(name=f"layer {k}") for k in range(1, len(found)))
    return Chain(widths=found, layers=layers)


def chain_of_convolutions(chain: Chain, size: Sequence[int], kernel: int) -> Chain:
    """Circular convolutions of kernel × kernel taps that keep their maps, then a linear layer."""
    check_whole(kernel=kernel)
    if kernel > min(size):
        raise ArgumentError(f"kernel = {kernel} is larger than the map of {size[0]} x {size[1]}.")
    taps, frequencies = kernel**2, half_spectrum(tuple(size), kernel**2)
    # One linear layer at the end, l − 1 convolutions before it.
    convs = [replace(layer, taps=taps, frequencies=frequencies) for layer in chain.layers[:-1]]
    return replace(
        chain,
        layers=(*convs, chain.layers[-1]),
        convs=len(convs),
        last_map=math.prod(size),
    )


# The steps of an `nn.Sequential` of torch's own modules.


def leaves_of(model: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules that a Sequential applies, nested ones opened; a module used twice comes
    twice.
    """
    if not isinstance(model, nn.Sequential) or type(model).forward is not nn.Sequential.forward:
        yield name, model
        return
    for key, child in model._modules.items():
        if child is not None:
            yield from leaves_of(child, f"{name}.{key}" if name else key)


def module_step(name: str, module: nn.Module) -> ChainStep | Obstacle:
    """One of torch's own modules as a step, or the reason why it is none."""
    kind = type(module).__name__
    # A subclass that overrides forward is not a linear map that is known.
    if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
        return ChainLayer(name=name, weight=module.weight.detach(), bias=module.bias)
    if type(module) is nn.Conv2d:
        padding = f"padding_mode = {module.padding_mode!r}"
        why = f"{kind} with groups = {module.groups}, {padding} ({name})"
        return (
            ChainLayer(name=name, weight=module.weight.detach(), bias=module.bias, conv=module)
            if has_explicit_bound(module)
            else Obstacle(text=why)
        )
    constant = lipschitz_constant(module)
    if isinstance(constant, str):
        return Obstacle(text=f"{kind} that {constant} ({name or 'the model itself'})")
    # A copy in float64: biases and σ(0) pass through it, and the model stays as it is.
    return Passage(name=name, lipschitz=constant, apply=deepcopy(module).eval().double().cpu())


# The steps of any other module, from its captured graph.


def captured_steps(model: nn.Module, size: tuple[int, ...] | None) -> list[ChainStep | Obstacle]:
    """The steps of a model read as a graph, node by node."""
    kinds = nn.Conv2d if size else nn.Linear
    first = next((module for module in model.modules() if isinstance(module, kinds)), None)
    if first is None:
        raise TheoryError(
            f"{type(model).__name__} has no linear layer from which its input size could be "
            f"inferred. {GIVE_WIDTHS}"
        )
    still = deepcopy(model).eval().cpu()
    try:
        graph = capture(still, _example(first, size))
    except CaptureError as error:
        raise TheoryError(
            f"{type(model).__name__} cannot be read as a chain of linear layers: {error} Or write"
            f" it as an nn.Sequential, for which more activations are known. {GIVE_WIDTHS}"
        ) from error
    state = graph.state(still)
    return [_node_step(node, before, state, still) for before, node in pairwise(graph.nodes)]


def _example(first: nn.Module, size: tuple[int, ...] | None) -> Tensor:
    """Zeros that the first layer takes."""
    if isinstance(first, nn.Conv2d) and size:
        return torch.zeros(1, first.in_channels, *size)
    return torch.zeros(1, int(first.in_features))  # type: ignore[arg-type]


def _node_step(node: Node, before: Node, state: State, model: nn.Module) -> ChainStep | Obstacle:
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
        conv = convolution_of(node, model)
        if conv is not None:
            return module_step(node.place.module, conv)
        return affine_step(node, before.shape, state, dict(model.named_parameters()))
    return Obstacle(text=str(node.place))


def _rearranges(node: Structural, shape: tuple[int, ...]) -> bool:
    """Every value goes to one place: norms stay. Seen on values that differ."""
    # The numbers begin at 1: a 0 could not be told from padding.
    numbers = torch.arange(1.0, math.prod(shape) + 1, dtype=torch.float64)
    return torch.equal(node.function(numbers.view(shape)).flatten().sort().values, numbers)


# A model as the chain the theorems speak of: linear maps, and functions of known Lipschitz
# constant between them.
#
# An `nn.Sequential` of torch's own modules is walked; any other module is captured as a graph,
# which must be one path.


def steps_of(model: nn.Module, size: tuple[int, ...] | None = None) -> list[ChainStep]:
    """The steps in the order in which they are applied, or an error that names everything in the
    way. `size`: height and width of the input, for a model with convolutions.
    """
    _check_real(model)
    leaves = list(leaves_of(model))
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
        captured_steps(model, size) if own else [module_step(name, leaf) for name, leaf in leaves]
    )
    obstacles = [step.text for step in found if isinstance(step, Obstacle)]
    steps = [step for step in found if not isinstance(step, Obstacle)]
    obstacles += _shared([step for step in steps if isinstance(step, ChainLayer)])
    if obstacles:
        raise TheoryError(
            "the theorems cover one chain of layers with functions of known Lipschitz constant"
            f" between them; this model has: {'; '.join(dict.fromkeys(obstacles))}. {GIVE_WIDTHS}"
        )
    _check_values(steps)
    return steps


def has_convolutions(model: nn.Module) -> bool:
    """Whether any layer is a 2-D convolution."""
    return any(isinstance(module, nn.Conv2d) for module in model.modules())


def _shared(layers: Sequence[ChainLayer]) -> list[str]:
    """Weights used by two layers: entries of different layers are assumed independent, and would be
    pruned at once.
    """
    names: dict[int, list[str]] = {}
    for layer in layers:
        # By memory, not by name: tied weights may hang under two names.
        names.setdefault(layer.weight.data_ptr(), []).append(layer.name)
    return [f"one weight in {len(n)} places ({', '.join(n)})" for n in names.values() if len(n) > 1]


def _check_values(steps: Sequence[ChainStep]) -> None:
    bad = [f"{step.name or 'the model'!s}: {why}" for step in steps if (why := _flaw(step))]
    if bad:
        raise ParameterError(
            f"{'; '.join(bad)}. No bound follows from such weights; load or train others."
        )


def _flaw(step: ChainStep) -> str:
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


# Reads the chain of layers that `plan` speaks about off a model, or off widths.


@torch.no_grad()
def read_chain(
    model_or_widths: nn.Module | Sequence[int],
    input_size: int | Sequence[int] | None = None,
    kernel: int | None = None,
) -> Chain:
    """The chain of a model, or of the given widths. `input_size`: height and width of the input of
    a convolution; `kernel` makes widths the channels of convolutions.
    """
    if not isinstance(model_or_widths, nn.Module):
        chain = chain_of_widths(model_or_widths)
        return (
            chain
            if kernel is None
            else chain_of_convolutions(chain, entry_size(input_size), kernel)
        )
    if kernel is not None:
        raise ArgumentError(
            f"kernel = {kernel}: goes with widths; a model's kernels are read off it."
        )
    convolutions = has_convolutions(model_or_widths)
    # Torch's own layers are read without an input size, so that obstacles are reported first;
    # `convolutional` asks for a missing one.
    size = None if input_size is None or not convolutions else entry_size(input_size)
    steps = steps_of(model_or_widths, size)
    layers = [step for step in steps if isinstance(step, ChainLayer)]
    if not layers:
        raise TheoryError(f"{type(model_or_widths).__name__} has no linear layer to prune.")
    if convolutions:
        return convolutional(steps, layers, input_size)
    # Zero is carried along: what it becomes is σ(b), which the paper takes to be 0.
    between, _ = walk(steps, torch.zeros(1, layers[0].weight.shape[1], dtype=torch.float64))
    return Chain(widths=widths_of(layers), layers=tuple(layers), between=between)
