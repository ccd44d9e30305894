"""Activations that bend at 0 alone (relu, leaky relu), and what is an identity in evaluation."""

from typing import Any

import torch

from secateurs.graph.builder import Builder
from secateurs.graph.operators import Gap, Many, Value, lowers

aten = torch.ops.aten


@lowers(aten.relu.default)
def relu(build: Builder, x: Value) -> Value:
    """max(x, 0)."""
    return build.activation(x, slope=0.0)


@lowers(aten.leaky_relu.default)
def leaky_relu(build: Builder, x: Value, slope: float = 0.01) -> Value:
    """x where positive, slope · x elsewhere; the identity for slope 1."""
    # As a node of its own it would count as a neuron and cost every bound an interval.
    return x if slope == 1 else build.activation(x, slope=slope)


@lowers(aten.rrelu.default)
def rrelu(
    build: Builder,
    x: Value,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
) -> Value:
    """In evaluation mode a leaky relu with the mean slope."""
    if training:
        raise Gap("a random slope: call model.eval() first")
    return leaky_relu(build, x, (lower + upper) / 2)


@lowers(aten.clamp.default)
def clamp(build: Builder, x: Value, low: Any = None, high: Any = None) -> Value:
    """clamp(min=0) is relu, clamp(max=0) is −relu(−x); other limits clip, which no path
    expresses.
    """
    if low is None and high is None:
        return x
    if _zero(low) and high is None:
        return relu(build, x)
    if low is None and _zero(high):
        # Paths know one bend only, relu; signs on both sides turn it around.
        return build.scale(relu(build, build.scale(x, -1.0)), -1.0)
    raise Gap(f"clipping to [{low}, {high}] bends elsewhere than at 0")


@lowers(aten.clamp_min.default)
def clamp_min(build: Builder, x: Value, low: Any) -> Value:
    """clamp(min=0)."""
    return clamp(build, x, low, None)


@lowers(aten.clamp_max.default)
def clamp_max(build: Builder, x: Value, high: Any) -> Value:
    """clamp(max=0)."""
    return clamp(build, x, None, high)


@lowers(aten.threshold.default)
def threshold(build: Builder, x: Value, limit: float, value: float) -> Value:
    """x where x > limit, else value: relu for 0, 0."""
    if limit == 0 and value == 0:
        return relu(build, x)
    raise Gap(f"a threshold at {limit} with value {value} bends or jumps elsewhere than at 0")


@lowers(aten.hardtanh.default)
def hardtanh(build: Builder, x: Value, low: float = -1, high: float = 1) -> Value:
    """Clips: refused by name."""
    raise Gap(f"clipping to [{low}, {high}] (hardtanh, ReLU6) bends elsewhere than at 0")


@lowers(aten.dropout.default, aten.feature_dropout.default, aten.alpha_dropout.default)
@lowers(aten.feature_alpha_dropout.default)
def dropout(build: Builder, x: Value, p: float, train: bool) -> Value:
    """The identity in evaluation mode."""
    if train and p > 0:
        raise Gap("dropout in training mode: call model.eval() first")
    return x


@lowers(aten.native_dropout.default)
def native_dropout(build: Builder, x: Value, p: float, train: bool | None) -> Many:
    """The identity in evaluation mode, and a mask; `train=None` counts as training."""

    def pick(index: int) -> Value:
        if index:
            raise Gap("the mask of a dropout layer is not a value of the network")
        return dropout(build, x, p, train is not False)

    return Many(pick)


def _zero(limit: Any) -> bool:
    return isinstance(limit, int | float) and limit == 0
