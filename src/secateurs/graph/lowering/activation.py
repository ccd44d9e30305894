"""Activations of straight pieces, as the relus that they are, and what is an identity in
evaluation.

A piece that starts at a is relu(x − a): −a is the bias of a neuron in front of it. So a clip to
[a, b] is a + relu(x − a) − relu(x − b), and PReLU relu(x) − w · relu(−x). Analyses of channels
alone see a clip as one operation instead, of which they know more (`opaque`).
"""

import math
from typing import Any

import torch

from secateurs.graph.builder import Builder
from secateurs.graph.operators import Gap, Many, Value, lowers
from secateurs.graph.primitives import Axes, Bilinear, Source, negate

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


@lowers(aten.prelu.default)
def prelu(build: Builder, x: Value, weight: Source) -> Value:
    """relu(x) − w · relu(−x): the slopes go with their channels."""
    below = build.activation(build.scale(x, -1.0), slope=0.0)
    if len(weight.shape) == 1 and len(x.shape) > 2:
        spread = (1, -1, *[1] * (len(x.shape) - 2))
        each = Bilinear(
            label="prelu",
            function=lambda t, w: t * w.reshape(spread),
            bias_shape=spread,
            axes=Axes(diagonal=True),
        )
        bent = build.affine(below, each, negate(weight))
    else:
        bent = build.scale(below, negate(weight))
    return build.add([build.activation(x, slope=0.0), bent], (1, 1))


@lowers(aten.clamp.default, aten.clip.default)
def clamp(build: Builder, x: Value, low: Any = None, high: Any = None) -> Value:
    """clamp(min=0) is relu, clamp(max=0) is −relu(−x); other limits bend elsewhere."""
    low, high = _limit(low, -math.inf), _limit(high, math.inf)
    if low is None and high is None:
        return x
    if high is None:
        return _above(build, x, low)
    if low is None:
        # Signs on both sides turn a bend around.
        return build.scale(_above(build, build.scale(x, -1.0), -high), -1.0)
    if low > high:
        raise Gap(f"clipping to [{low}, {high}], which is a constant")
    return _clip(build, x, low, high)


def _limit(limit: Any, none: float) -> Any:
    """A limit that is a number; None for one that is never reached."""
    if limit is None or limit == none:
        return None
    if not isinstance(limit, int | float) or not math.isfinite(limit):
        raise Gap(f"clipping at {limit}")
    return limit


def _above(build: Builder, x: Value, low: float) -> Value:
    """max(x, low) = low + relu(x − low)."""
    if low == 0:
        return relu(build, x)
    _refuse_where_channels_count(build, f"clipping at {low}")
    return _moved(build, relu(build, _moved(build, x, -low)), low)


def _clip(build: Builder, x: Value, low: float, high: float) -> Value:
    """low + relu(x − low) − relu(x − high)."""
    _refuse_where_channels_count(build, f"clipping to [{low}, {high}]")
    parts = [relu(build, _moved(build, x, -limit)) for limit in (low, high)]
    return _moved(build, build.add(parts, (1, -1)), low)


def _moved(build: Builder, x: Value, by: float) -> Value:
    return x if by == 0 else build.affine(x, bias=build.constant(float(by)))


def _refuse_where_channels_count(build: Builder, what: str) -> None:
    """Two relus have two signs: what one rising function makes of a channel is known better."""
    if build.opaque:
        raise Gap(what)


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
    """A clip to [low, high]."""
    return clamp(build, x, low, high)


@lowers(aten.relu6.default)
def relu6(build: Builder, x: Value) -> Value:
    """A clip to [0, 6]."""
    return clamp(build, x, 0, 6)


@lowers(aten.hardsigmoid.default)
def hardsigmoid(build: Builder, x: Value) -> Value:
    """(relu(x + 3) − relu(x − 3)) / 6."""
    _refuse_where_channels_count(build, "hardsigmoid")
    parts = [relu(build, _moved(build, x, by)) for by in (3.0, -3.0)]
    return build.scale(build.add(parts, (1, -1)), build.reciprocal(6.0))


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
