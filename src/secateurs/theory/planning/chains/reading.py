"""Reads the chain of layers that `plan` speaks about off a model, or off widths."""

from collections.abc import Sequence

import torch
from torch import nn

from secateurs.errors import ArgumentError, TheoryError
from secateurs.theory.planning.chains.chain import Chain
from secateurs.theory.planning.chains.chain_of_convs import entry_size
from secateurs.theory.planning.chains.conv_chain import convolutional
from secateurs.theory.planning.chains.fits import fit_of
from secateurs.theory.planning.chains.given import given, given_convs
from secateurs.theory.planning.chains.model_steps import has_convolutions, steps_of
from secateurs.theory.planning.chains.passed import walk
from secateurs.theory.planning.chains.ranges import (
    deviation,
    entry_range,
    entry_sizes,
)
from secateurs.theory.planning.chains.steps import Layer, Step


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
        convolutional(steps, layers, input_size)
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
