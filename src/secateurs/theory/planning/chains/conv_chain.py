"""Convolutions with linear layers behind them, read as one chain."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from secateurs.errors import TheoryError
from secateurs.theory.planning.chains.chain import Chain
from secateurs.theory.planning.chains.chain_of_convs import (
    entry_size,
    frequency_map,
    repeats,
)
from secateurs.theory.planning.chains.fits import fit_of
from secateurs.theory.planning.chains.passed import walk
from secateurs.theory.planning.chains.ranges import (
    deviation,
    entry_range,
    filter_sizes,
)
from secateurs.theory.planning.chains.steps import Layer, Step
from secateurs.theory.pruning.tails.counts import half_spectrum


def convolutional(
    steps: Sequence[Step],
    layers: Sequence[Layer],
    input_size: int | Sequence[int] | None,
) -> Chain:
    """The chain of these steps, maps followed from the input on."""
    convs, linear = _parts(layers)
    size = entry_size(input_size)
    between, shapes = walk(
        steps, torch.zeros(1, convs[0].in_channels, *size, dtype=torch.float64)
    )
    # Behind the walk, which names the layer that does not take what it gets.
    _check_channels(convs)
    maps = [shape[2:] for shape in shapes]
    taps = tuple(layer.weight[0, 0].numel() for layer in layers[: len(convs)])
    return Chain(
        widths=(
            convs[0].in_channels,
            *(conv.out_channels for conv in convs),
            *(layer.weight.shape[0] for layer in linear),
        ),
        scales=tuple(entry_range(layer.weight) for layer in layers),
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
            filter_sizes(layer.weight) for layer in layers[1 : len(convs)]
        ),
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
