"""The chain of layers that `plan` speaks about: widths, ranges of the entries, what is between
them.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError, CaptureError, ParameterError, TheoryError
from secateurs.graph import Activation, Affine, Node, Pool, State, Structural, capture
from secateurs.parameters import not_real
from secateurs.theory.guarantee import check_whole, check_widths
from secateurs.theory.laws import Between
from secateurs.theory.random_matrices import half_spectrum

# Whether a layer looks like what a theorem assumes of it; that its entries are independent cannot
# be seen in it.

FAR = 6.0
"""Standard errors that the mean of entries of mean zero exceeds with chance about 10⁻⁹."""
CLOSE = 0.02
"""A distance to the uniform law up to this is close enough to speak of uniform entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How well the entries of a matrix fit the laws that the theorems assume.

    Attributes:
        mean_z: The mean in standard errors.
        uniform: The Kolmogorov–Smirnov distance to the uniform law on ±max|w|.
        normal: The distance to the normal law of mean 0 and their root mean square.
        noise: The distance that uniform entries themselves exceed with chance below 10⁻⁶.
    """

    mean_z: float
    uniform: float
    normal: float
    noise: float

    def misfit(self, law: str) -> str | None:
        """What speaks against the law, in words."""
        if abs(self.mean_z) > FAR:
            return f"its mean is {self.mean_z:.1f} standard errors from zero"
        distance = {"uniform": self.uniform, "normal": self.normal}.get(law)
        if distance is not None and distance > CLOSE + self.noise:
            return f"its entries are not {law} (Kolmogorov–Smirnov distance {distance:.3f})"
        return None


def fit_of(weight: Tensor) -> Fit:
    """The fit of one layer's entries.

    >>> fit_of(torch.linspace(-1, 1, 1001).view(7, 143)).misfit("uniform") is None
    True
    """
    values = weight.detach().double().flatten().sort().values
    # `or 1.0`: a layer of zeros is divided by 1.
    count, half = values.numel(), float(values.abs().max()) or 1.0
    ranks = torch.arange(count + 1, dtype=torch.float64, device=values.device) / count
    root = float(values.square().mean().sqrt()) or 1.0

    def distance(law: Tensor) -> float:
        return float(
            # The empirical law jumps at each entry: both sides of the jump are
            # compared.
            torch.maximum((ranks[1:] - law).abs(), (law - ranks[:-1]).abs()).max()
        )

    spread = float(values.std(correction=0)) / math.sqrt(count)
    return Fit(
        mean_z=float(values.mean()) / spread if spread > 0 else 0.0,
        uniform=distance((values / half + 1) / 2),
        normal=distance(torch.special.ndtr(values / root)),
        # Dvoretzky–Kiefer–Wolfowitz: P(sup|F_n − F| > t) ≤ 2e^{−2nt²}.
        noise=math.sqrt(math.log(2e6) / (2 * count)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Widths (channels) d_0…d_l and, for each layer, K of the entries' range ±K/√(taps · max(d_k,
    d_{k−1})).

    Read off a model: the layers' `names`, how their entries fit the laws assumed (`fits`), what
    lies `between` them (first: before layer 1), and of inner linear layers the `magnitudes`,
    sorted, as shares of the range; `filter_norms`, of inner convolutions the ℓ¹ norms of the
    filters, sorted, in the same unit; `deviations`, K for entries whose root mean square is the
    unit. Convolutions first, then linear layers: `taps`, `frequencies` and `repeats` (a factor on
    the norm, for circular padding beyond "same") of each convolution, `last_map` the positions of
    the maps that the first linear layer sees.
    """

    widths: tuple[int, ...]
    scales: tuple[float, ...]
    names: tuple[str, ...]
    fits: tuple[Fit, ...] = ()
    between: tuple[Between, ...] | None = None
    magnitudes: tuple[Tensor, ...] = ()
    taps: tuple[int, ...] = ()
    frequencies: tuple[int, ...] = ()
    repeats: tuple[float, ...] = ()
    last_map: int = 1
    filter_norms: tuple[Tensor, ...] = ()
    deviations: tuple[float, ...] = ()

    @property
    def scale(self) -> float:
        """The largest K."""
        return max(self.scales)

    def inner(self, widths: Sequence[int]) -> list[int]:
        """How many entries (filters) each layer has that is pruned: not the first, not the last,
        and of a network with convolutions only these.
        """
        # Among convolutions only these are pruned; in a linear chain all but first and
        # last.
        stop = len(self.taps) + 1 if self.taps else len(widths) - 1
        return [a * b for a, b in pairwise(widths[1:stop])]


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


# What a chain is made of: layers, passages between them, and obstacles.


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
GIVE_WIDTHS = "Give plan() the widths instead to reason about a plain chain of that size."


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
) -> Step | Obstacle:
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
    return Layer(name=name, weight=weight if axes.weight_out == 0 else weight.T, bias=bias)


# Sizes of maps in a chain of convolutions, and the circular convolution that contains each of
# them.


def entry_size(input_size: int | Sequence[int] | None) -> tuple[int, int]:
    """Height and width of the input."""
    if input_size is None:
        raise ArgumentError(
            "this model has convolutions: give input_size=, the height and width of its input."
        )
    sides = (input_size,) * 2 if isinstance(input_size, int) else input_size
    if (
        isinstance(sides, str)
        or not isinstance(sides, Sequence)
        or len(sides) != 2
        or not all(map(_whole, sides))
    ):
        raise ArgumentError(
            f"input_size = {input_size!r}: one side, or height and width, in whole pixels from"
            " 1 on."
        )
    return int(sides[0]), int(sides[1])


def _whole(side: object) -> bool:
    return isinstance(side, int) and side >= 1


def conv_output(conv: nn.Conv2d, shape: Sequence[int], name: str) -> tuple[int, ...]:
    """Height and width behind a convolution."""
    if len(shape) != 4 or shape[1] != conv.in_channels:
        raise TheoryError(
            f"the layers do not form one chain: {name} takes {conv.in_channels} channels and would"
            f" get the shape {tuple(shape[1:])}."
        )
    sides = shape[2:]
    # torch itself wraps around once on each side at most.
    if conv.padding_mode == "circular" and any(
        pad > 2 * n for n, pad in zip(sides, _padding(conv), strict=True)
    ):
        raise ArgumentError(
            f"{name}: circular padding of {conv.padding} wraps more than once around"
            f" {tuple(sides)}."
        )
    padded = [n + pad for n, pad in zip(sides, _padding(conv), strict=True)]
    reach = _reach(conv)
    if any(n < k for n, k in zip(padded, reach, strict=True)):
        raise ArgumentError(
            f"{name}: the kernel reaches over {reach} (dilation included), more than the padded map"
            f" {tuple(padded)} that it would see at this input_size."
        )
    return tuple((n - k) // s + 1 for n, k, s in zip(padded, reach, conv.stride, strict=True))


def frequency_map(conv: nn.Conv2d, size: Sequence[int]) -> tuple[int, ...]:
    """The map on which a circular convolution contains this one: a stride only leaves outputs
    out.
    """
    if conv.padding_mode == "circular":
        return tuple(size)
    return tuple(n + pad for n, pad in zip(size, _padding(conv), strict=True))


def repeats(conv: nn.Conv2d, size: Sequence[int]) -> float:
    """√ of how often an output of the circular convolution can occur among those of this one.

    Padding of reach − 1 rows in all ("same") gives every output once; more wraps around again, less
    leaves some out.
    """
    if conv.padding_mode != "circular":
        return 1.0
    outputs = [
        n + pad - k + 1 for n, pad, k in zip(size, _padding(conv), _reach(conv), strict=True)
    ]
    return math.sqrt(
        # −(−a // b) is the quotient rounded up, in whole numbers.
        math.prod(-(-out // n) for out, n in zip(outputs, size, strict=True))
    )


def _reach(conv: nn.Conv2d) -> tuple[int, ...]:
    return tuple(d * (k - 1) + 1 for d, k in zip(conv.dilation, conv.kernel_size, strict=True))


def _padding(conv: nn.Conv2d) -> tuple[int, ...]:
    """Rows, and columns, that padding adds in all."""
    if conv.padding == "valid":
        return (0, 0)
    if conv.padding == "same":
        return tuple(k - 1 for k in _reach(conv))
    return tuple(2 * int(p) for p in conv.padding)


# Zero and the biases on their way through a chain: what the theorems call σ_k(b_k).


def walk(steps: Sequence[Step], x: Tensor) -> tuple[tuple[Between, ...], list[tuple[int, ...]]]:
    """What lies between the layers, and the shape that each of them takes (last: that of the
    output).
    """
    found, shapes, passed = [], [], _Passed(width=x.shape[1], bias=x, zero=x)
    for step in steps:
        if isinstance(step, Layer):
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


def _bias(layer: Layer, x: Tensor) -> Tensor:
    """What the layer makes of zero."""
    rows = layer.weight.shape[0]
    shape = (
        (1, rows)
        if layer.conv is None
        else (1, rows, *conv_output(layer.conv, x.shape, layer.name))
    )
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


# What is read off one layer's weights: the unit of its entries, and their sizes in that unit.

_TINY = torch.finfo(torch.float64).tiny
"""What a layer of zeros is divided by, and stays zero."""


def entry_range(weight: Tensor) -> float:
    """K of one layer: max|w| √(taps · max(rows, columns))."""
    return float(weight.abs().max()) * math.sqrt(weight[0, 0].numel() * max(weight.shape[:2]))


def deviation(weight: Tensor) -> float:
    """K of one layer whose unit is the root mean square of its entries."""
    # Around zero, not around the mean: the law assumed has mean zero.
    root = float(weight.double().square().mean().sqrt())
    return root * math.sqrt(weight[0, 0].numel() * max(weight.shape[:2]))


def filter_sizes(weight: Tensor) -> Tensor:
    """The sorted ℓ¹ norms of the filters, in units of the largest entry."""
    sizes = weight.detach().double().abs()
    norms = sizes.flatten(2).sum(2).flatten().sort().values
    return norms / sizes.max().clamp_min(_TINY)


def entry_sizes(weight: Tensor) -> Tensor:
    """The sorted magnitudes, in units of the largest."""
    sizes = weight.detach().abs().flatten().double().sort().values
    return sizes / sizes[-1].clamp_min(_TINY)


# Convolutions with linear layers behind them, read as one chain.


def convolutional(
    steps: Sequence[Step],
    layers: Sequence[Layer],
    input_size: int | Sequence[int] | None,
) -> Chain:
    """The chain of these steps, maps followed from the input on."""
    convs, linear = _parts(layers)
    size = entry_size(input_size)
    between, shapes = walk(steps, torch.zeros(1, convs[0].in_channels, *size, dtype=torch.float64))
    # Behind the walk, which names the layer that does not take what it gets.
    _check_channels(convs)
    maps = [shape[2:] for shape in shapes]
    taps = tuple(layer.weight[0, 0].numel() for layer in layers[: len(convs)])
    return replace(
        plain_chain(layers, between),
        taps=taps,
        frequencies=tuple(
            half_spectrum(frequency_map(c, s), t)
            for c, s, t in zip(convs, maps, taps, strict=False)
        ),
        repeats=tuple(repeats(conv, size) for conv, size in zip(convs, maps, strict=False)),
        # Positions per channel of what the flattening hands on.
        last_map=linear[0].weight.shape[1] // convs[-1].out_channels,
        filter_norms=tuple(filter_sizes(layer.weight) for layer in layers[1 : len(convs)]),
    )


def plain_chain(layers: Sequence[Layer], between: tuple[Between, ...]) -> Chain:
    """What is read off every layer, linear or not."""
    return Chain(
        widths=(
            layers[0].weight.shape[1],
            *(layer.weight.shape[0] for layer in layers),
        ),
        scales=tuple(entry_range(layer.weight) for layer in layers),
        names=tuple(layer.name for layer in layers),
        fits=tuple(fit_of(layer.weight) for layer in layers),
        between=between,
        deviations=tuple(deviation(layer.weight) for layer in layers),
    )


def _parts(layers: Sequence[Layer]) -> tuple[list[nn.Conv2d], list[Layer]]:
    """The convolutions, and the linear layers behind them; any other order is refused."""
    convs = [layer.conv for layer in layers if layer.conv is not None]
    linear = [layer for layer in layers if layer.conv is None]
    if not linear or any(layer.conv is None for layer in layers[: len(convs)]):
        raise TheoryError(
            "plan() reads convolutions with linear layers behind them, and this model has none"
            " there, or a convolution behind one. Call theory.theorem_3_explicit for a network of"
            " its sizes."
        )
    return convs, linear


def _check_channels(convs: Sequence[nn.Conv2d]) -> None:
    if not all(a.out_channels == b.in_channels for a, b in pairwise(convs)):
        raise TheoryError("the convolutions of this model do not form one chain.")


# Chains that are given by their widths alone.


def given(widths: object) -> Chain:
    """The chain of these widths, each layer with K = 1."""
    if isinstance(widths, str | bytes) or not isinstance(widths, Iterable):
        raise ArgumentError(
            f"{widths!r} is neither a model nor widths such as [784, 300, 300, 10]."
        )
    # Read once: an iterator is empty afterwards.
    found = tuple(widths)
    check_widths(found)
    names = tuple(f"layer {k}" for k in range(1, len(found)))
    return Chain(widths=found, scales=(1.0,) * len(names), names=names)


def given_convs(chain: Chain, size: tuple[int, int], kernel: int) -> Chain:
    """Circular convolutions of kernel × kernel taps that keep their maps, then a linear layer."""
    check_whole(kernel=kernel)
    if kernel > min(size):
        raise ArgumentError(f"kernel = {kernel} is larger than the map of {size[0]} x {size[1]}.")
    # One linear layer at the end, l − 1 convolutions before it.
    convs = len(chain.widths) - 2
    return replace(
        chain,
        taps=(kernel**2,) * convs,
        frequencies=(half_spectrum(size, kernel**2),) * convs,
        repeats=(1.0,) * convs,
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


def module_step(name: str, module: nn.Module) -> Step | Obstacle:
    """One of torch's own modules as a step, or the reason why it is none."""
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
    return Passage(name=name, lipschitz=constant, apply=deepcopy(module).eval().double().cpu())


# The steps of any other module, from its captured graph.


def captured_steps(model: nn.Module, size: tuple[int, int] | None) -> list[Step | Obstacle]:
    """The steps of a model read as a graph, node by node."""
    kinds = nn.Conv2d if size else nn.Linear
    first = next((module for module in model.modules() if isinstance(module, kinds)), None)
    if first is None:
        raise TheoryError(
            f"{type(model).__name__} has no linear layer from which its input could be told."
            f" {GIVE_WIDTHS}"
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


def _example(first: nn.Module, size: tuple[int, int] | None) -> Tensor:
    """Zeros that the first layer takes."""
    if isinstance(first, nn.Conv2d) and size:
        return torch.zeros(1, first.in_channels, *size)
    return torch.zeros(1, int(first.in_features))  # type: ignore[arg-type]


def _node_step(node: Node, before: Node, state: State, model: nn.Module) -> Step | Obstacle:
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
    # From 1 on: a 0 could not be told from padding.
    numbers = torch.arange(1.0, math.prod(shape) + 1, dtype=torch.float64)
    return torch.equal(node.function(numbers.view(shape)).flatten().sort().values, numbers)


# A model as the chain the theorems speak of: linear maps, and functions of known Lipschitz
# constant between them.
#
# An `nn.Sequential` of torch's own modules is walked; any other module is captured as a graph,
# which must be one path.


def steps_of(model: nn.Module, size: tuple[int, int] | None = None) -> list[Step]:
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
    obstacles += _shared([step for step in steps if isinstance(step, Layer)])
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


def _shared(layers: list[Layer]) -> list[str]:
    """Weights used by two layers: entries of different layers are assumed independent, and would be
    pruned at once.
    """
    names: dict[int, list[str]] = {}
    for layer in layers:
        # By memory, not by name: tied weights may hang under two names.
        names.setdefault(layer.weight.data_ptr(), []).append(layer.name)
    return [f"one weight in {len(n)} places ({', '.join(n)})" for n in names.values() if len(n) > 1]


def _check_values(steps: Sequence[Step]) -> None:
    bad = [f"{step.name or 'the model'!s}: {why}" for step in steps if (why := _flaw(step))]
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
        chain = given(model_or_widths)
        return chain if kernel is None else given_convs(chain, entry_size(input_size), kernel)
    if kernel is not None:
        raise ArgumentError(
            f"kernel = {kernel}: goes with widths; a model's kernels are read off it."
        )
    convolutions = has_convolutions(model_or_widths)
    # An nn.Sequential is walked, and asked for its input size only when its obstacles are told.
    size = None if input_size is None or not convolutions else entry_size(input_size)
    steps = steps_of(model_or_widths, size)
    layers = [step for step in steps if isinstance(step, Layer)]
    if not layers:
        raise TheoryError(f"{type(model_or_widths).__name__} has no linear layer to prune.")
    return convolutional(steps, layers, input_size) if convolutions else _linear(steps, layers)


def _linear(steps: Sequence[Step], layers: Sequence[Layer]) -> Chain:
    # Zero is carried along: what it becomes is σ(b), which print takes to be 0.
    between, _ = walk(steps, torch.zeros(1, layers[0].weight.shape[1], dtype=torch.float64))
    return replace(
        plain_chain(layers, between),
        magnitudes=tuple(entry_sizes(layer.weight) for layer in layers[1:-1]),
    )
