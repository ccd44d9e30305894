"""Reads the chain of layers that `plan` speaks about off a model, or off widths."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from secateurs.errors import ArgumentError, TheoryError
from secateurs.theory.planning.chains.chain import Chain
from secateurs.theory.planning.chains.chain_of_convs import (
    entry_size,
    frequency_map,
    repeats,
)
from secateurs.theory.planning.chains.fits import fit_of
from secateurs.theory.planning.chains.given import given, given_convs
from secateurs.theory.planning.chains.model_steps import has_convolutions, steps_of
from secateurs.theory.planning.chains.passed import walk
from secateurs.theory.planning.chains.ranges import (
    deviation,
    entry_range,
    entry_sizes,
    filter_sizes,
)
from secateurs.theory.planning.chains.steps import Layer, Step
from secateurs.theory.pruning.tails.counts import half_spectrum


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
        return (
            chain
            if kernel is None
            else given_convs(chain, entry_size(input_size), kernel)
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


def _linear(steps: Sequence[Step], layers: Sequence[Layer]) -> Chain:
    # Zero is carried along: what it becomes is σ(b), which print takes to be 0.
    between, _ = walk(
        steps, torch.zeros(1, layers[0].weight.shape[1], dtype=torch.float64)
    )
    return Chain(
        widths=(
            layers[0].weight.shape[1],
            *(layer.weight.shape[0] for layer in layers),
        ),
        scales=tuple(entry_range(layer.weight) for layer in layers),
        names=tuple(layer.name for layer in layers),
        fits=tuple(fit_of(layer.weight) for layer in layers),
        between=between,
        magnitudes=tuple(entry_sizes(layer.weight) for layer in layers[1:-1]),
        deviations=tuple(deviation(layer.weight) for layer in layers),
    )


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
    between, shapes = walk(
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
