"""Reads the chain of layers that `plan` speaks about off a model: widths, ranges of the entries,
what lies between.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError, TheoryError
from secateurs.theory.guarantee import check_whole, check_widths
from secateurs.theory.planning.chain_of_convs import (
    conv_output,
    entry_size,
    frequency_map,
    repeats,
)
from secateurs.theory.planning.fits import Fit, fit_of
from secateurs.theory.planning.model_steps import (
    Layer,
    Passage,
    Step,
    has_convolutions,
    steps_of,
)
from secateurs.theory.pruning.error_propagation import Between
from secateurs.theory.pruning.tails.counts import half_spectrum

_TINY = torch.finfo(torch.float64).tiny


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
        chain = _given(model_or_widths)
        return (
            chain
            if kernel is None
            else _given_convs(chain, entry_size(input_size), kernel)
        )
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
        raise TheoryError(
            f"{type(model_or_widths).__name__} has no linear layer to prune."
        )
    return (
        _convolutional(steps, layers, input_size)
        if convolutions
        else _linear(steps, layers)
    )


def _given(widths: object) -> Chain:
    if isinstance(widths, str | bytes) or not isinstance(widths, Iterable):
        raise ArgumentError(
            f"{widths!r} is neither a model nor widths such as [784, 300, 300, 10]."
        )
    # Read once: an iterator is empty afterwards.
    found = tuple(widths)
    check_widths(found)
    names = tuple(f"layer {k}" for k in range(1, len(found)))
    return Chain(widths=found, scales=(1.0,) * len(names), names=names)


def _given_convs(chain: Chain, size: tuple[int, int], kernel: int) -> Chain:
    """Circular convolutions of kernel × kernel taps that keep their maps, then a linear layer."""
    check_whole(kernel=kernel)
    if kernel > min(size):
        raise ArgumentError(
            f"kernel = {kernel} is larger than the map of {size[0]} x {size[1]}."
        )
    # One linear layer at the end, l − 1 convolutions before it.
    convs = len(chain.widths) - 2
    return replace(
        chain,
        taps=(kernel**2,) * convs,
        frequencies=(half_spectrum(size, kernel**2),) * convs,
        repeats=(1.0,) * convs,
        last_map=math.prod(size),
    )


def _linear(steps: Sequence[Step], layers: Sequence[Layer]) -> Chain:
    # Zero is carried along: what it becomes is σ(b), which print takes to be 0.
    between, _ = _walk(
        steps, torch.zeros(1, layers[0].weight.shape[1], dtype=torch.float64)
    )
    return Chain(
        widths=(
            layers[0].weight.shape[1],
            *(layer.weight.shape[0] for layer in layers),
        ),
        scales=tuple(_range(layer.weight) for layer in layers),
        names=tuple(layer.name for layer in layers),
        fits=tuple(fit_of(layer.weight) for layer in layers),
        between=between,
        magnitudes=tuple(_magnitudes(layer.weight) for layer in layers[1:-1]),
        deviations=tuple(_deviation(layer.weight) for layer in layers),
    )


def _range(weight: Tensor) -> float:
    """K of one layer: max|w| √(taps · max(rows, columns))."""
    return float(weight.abs().max()) * math.sqrt(
        weight[0, 0].numel() * max(weight.shape[:2])
    )


def _deviation(weight: Tensor) -> float:
    """K of one layer whose unit is the root mean square of its entries."""
    # Around zero, not around the mean: the law assumed has mean zero.
    root = float(weight.double().square().mean().sqrt())
    return root * math.sqrt(weight[0, 0].numel() * max(weight.shape[:2]))


def _filter_norms(weight: Tensor) -> Tensor:
    norms = weight.detach().double().abs().flatten(2).sum(2).flatten().sort().values
    return norms / weight.detach().double().abs().max().clamp_min(_TINY)


def _magnitudes(weight: Tensor) -> Tensor:
    sizes = weight.detach().abs().flatten().double().sort().values
    return sizes / sizes[-1].clamp_min(torch.finfo(torch.float64).tiny)


def _walk(
    steps: Sequence[Step], x: Tensor
) -> tuple[tuple[Between, ...], list[tuple[int, ...]]]:
    """What lies between the layers, and the shape that each of them takes (last: that of the
    output).
    """
    found, shapes, passed = [], [], _Passed(width=x.shape[1], bias=x, zero=x)
    for step in steps:
        if isinstance(step, Layer):
            found.append(passed.between())
            shapes.append(tuple(passed.bias.shape))
            bias = _bias(step, passed.bias)
            passed = _Passed(
                width=step.weight.shape[0], bias=bias, zero=torch.zeros_like(bias)
            )
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
        return Between(
            lipschitz=self.lipschitz, bias=added, rest=rest / math.sqrt(self.width)
        )


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
        torch.zeros(rows, dtype=torch.float64)
        if layer.bias is None
        else layer.bias.double().cpu()
    )
    return bias.view(1, -1, *[1] * (len(shape) - 2)).expand(shape).clone()


def _convolutional(
    steps: Sequence[Step],
    layers: Sequence[Layer],
    input_size: int | Sequence[int] | None,
) -> Chain:
    convs = [layer.conv for layer in layers if layer.conv is not None]
    linear = [layer for layer in layers if layer.conv is None]
    if not linear or any(layer.conv is None for layer in layers[: len(convs)]):
        raise TheoryError(
            "plan() reads convolutions with linear layers behind them, and this model has none"
            " there, or a convolution behind one. Call theory.theorem_3_explicit for a network of"
            " its sizes."
        )
    size = entry_size(input_size)
    between, shapes = _walk(
        steps, torch.zeros(1, convs[0].in_channels, *size, dtype=torch.float64)
    )
    if not all(a.out_channels == b.in_channels for a, b in pairwise(convs)):
        raise TheoryError("the convolutions of this model do not form one chain.")
    maps = [shape[2:] for shape in shapes]
    taps = tuple(layer.weight[0, 0].numel() for layer in layers[: len(convs)])
    return Chain(
        widths=(
            convs[0].in_channels,
            *(conv.out_channels for conv in convs),
            *(layer.weight.shape[0] for layer in linear),
        ),
        scales=tuple(_range(layer.weight) for layer in layers),
        names=tuple(layer.name for layer in layers),
        fits=tuple(fit_of(layer.weight) for layer in layers),
        between=between,
        taps=taps,
        frequencies=tuple(
            half_spectrum(frequency_map(c, s), t)
            for c, s, t in zip(convs, maps, taps, strict=False)
        ),
        repeats=tuple(
            repeats(conv, size) for conv, size in zip(convs, maps, strict=False)
        ),
        # Positions per channel of what the flattening hands on.
        last_map=linear[0].weight.shape[1] // convs[-1].out_channels,
        filter_norms=tuple(
            _filter_norms(layer.weight) for layer in layers[1 : len(convs)]
        ),
        deviations=tuple(_deviation(layer.weight) for layer in layers),
    )
