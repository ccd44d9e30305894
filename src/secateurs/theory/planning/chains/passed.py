"""Zero and the biases on their way through a chain: what the theorems call σ_k(b_k)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.errors import TheoryError
from secateurs.theory.planning.chains.chain_of_convs import conv_output
from secateurs.theory.planning.chains.steps import Layer, Passage, Step
from secateurs.theory.pruning.error_propagation import Between


def walk(
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
