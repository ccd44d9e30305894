"""Bounds carried through a softmax, sigmoid or tanh behind everything else.

Let δ_i bound the change of the input i of that map, and s_i = δ_i + max_{j≠i} δ_j that of a
difference of two inputs. Then the results change by at most
    sigmoid      tanh(δ_i/4)
    tanh         2 tanh(δ_i/2)
    softmax      tanh(s_i/4)
    log-softmax  s_i
whatever the inputs are, and no bound of δ alone is smaller for the first two. The slope of the
sigmoid is even and falls away from 0, so a step of δ changes it most across [−δ/2, δ/2], by
tanh(δ/4); tanh(z) is 2σ(2z) − 1. Softmax i is the sigmoid of z_i − log Σ_{j≠i} exp(z_j), whose
second term moves by at most max_{j≠i} δ_j; the slope of log-softmax i is e_i − p, so its change is
a mean of the changes of z_i − z_j, which is 0 for j = i.

Where f's own inputs are known to lie at a ≥ δ/2 or above (at −a or below), a step that begins there
changes the sigmoid by at most σ(a) − σ(a − δ), which falls as exp(δ − a).
"""

import math

import torch
from torch import Tensor

from secateurs.graph.ir import Ending

_OUTWARD = 1 + 2.0**-45
"""More than the few roundings here and 16 units of torch's tanh."""

_UNITS = 40
"""Units by which each function may err in all, of which exp and tanh take 16, and roundings."""

_FORMULAS = {
    "sigmoid": "tanh(δ/4)",
    "tanh": "2·tanh(δ/2)",
    "softmax": "tanh((δ_i + max δ_j)/4)",
    "log_softmax": "δ_i + max δ_j",
}


def carry(ending: Ending, change: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Bounds on the changes of the results, flat per box, from those of what the map reads.

    low, high: ends of what it reads in one of the networks; −∞ and ∞ where nothing is known.
    """
    if ending.name == "sigmoid":
        return _outward(_step(change, low, high), change, most=1.0)
    if ending.name == "tanh":
        return _outward(2 * _step(2 * change, 2 * low, 2 * high), change, most=2.0)
    single, dim = (len(change), *ending.inner), (ending.dim or 0) + 1
    gap = _of_differences(change.reshape(single), dim).reshape(change.shape)
    if ending.name == "log_softmax":
        return _outward(gap, gap, most=math.inf)
    leads = _leads(low.reshape(single), high.reshape(single), dim)
    return _outward(_step(gap, *(end.reshape(change.shape) for end in leads)), gap, most=1.0)


def _step(change: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """At least what a step by up to `change` from between `low` and `high` changes a sigmoid, but
    for the roundings that `_outward` covers; NaN where nothing is known of the change.
    """
    # σ(a) − σ(a − δ): to the other side of 0 it is the same, and from a = δ/2 it is the largest.
    a = torch.maximum(torch.maximum(low, -high), change / 2)
    # Of all roundings that of where the step ends is alone multiplied, by its own size.
    after = a - change - (a + change) * torch.finfo(a.dtype).eps
    return -(-change).expm1() / (1 + (-change).exp() + after.exp() + (-a).exp())


def _leads(low: Tensor, high: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Ends of z_i − log Σ_{j≠i} exp z_j; infinite where nothing is known."""
    # So many sums, each rounded by some units of what it adds.
    classes, eps = low.shape[dim], torch.finfo(low.dtype).eps
    share = (8 * classes + _UNITS) * eps
    below, above = low - _log_of_others(high, dim), high - _log_of_others(low, dim)
    off = share * (1 + torch.maximum(low.abs(), high.abs()).amax(dim=dim, keepdim=True))
    return (below - off).nan_to_num(nan=-math.inf), (above + off).nan_to_num(nan=math.inf)


def _log_of_others(z: Tensor, dim: int) -> Tensor:
    """log Σ_{j≠i} exp z_j, without a difference of sums; −∞ where there is no other."""
    none = torch.full_like(z.narrow(dim, 0, 1), -math.inf)
    last = z.shape[dim] - 1
    before = z.logcumsumexp(dim).narrow(dim, 0, last)
    after = z.flip(dim).logcumsumexp(dim).narrow(dim, 0, last).flip(dim)
    return torch.logaddexp(torch.cat([none, before], dim), torch.cat([after, none], dim))


def _outward(value: Tensor, change: Tensor, *, most: float) -> Tensor:
    """Rounded up, and 0 where nothing changes; a NaN proves nothing but that it is at most
    `most`.
    """
    up = (value * _OUTWARD + torch.finfo(value.dtype).tiny).nan_to_num(nan=math.inf, posinf=most)
    return torch.where(change == 0, 0.0, up.clamp(max=most))


def _of_differences(change: Tensor, dim: int) -> Tensor:
    """δ_i + max_{j≠i} δ_j; 0 where there is no other."""
    if change.shape[dim] == 1:
        return torch.zeros_like(change)
    change = change.nan_to_num(nan=math.inf, posinf=math.inf)
    first, second = change.topk(2, dim=dim).values.chunk(2, dim=dim)
    return change + torch.where(change == first, second, first)


def error_of(ending: Ending, x: Tensor, unit: float) -> Tensor:
    """How far the map of x, flat per input, lies from its computed value."""
    if ending.dim is None:
        return torch.full_like(x, _UNITS * unit)
    classes = ending.inner[ending.dim]
    # A sum of n exponentials, and the roundings of x_i − max, which exp multiplies by at most 1/e
    # and the mean over all classes by log n.
    units = 2 * (classes + _UNITS)
    if ending.name == "softmax":
        return torch.full_like(x, units * unit)
    each = x.reshape(len(x), *ending.inner)
    far = each.amax(dim=ending.dim + 1, keepdim=True) - each
    return (units * unit + 4 * unit * far).reshape(x.shape)


def explain(ending: Ending) -> str:
    """What a certificate says about it."""
    return (
        f"{ending.name} at the end: what enters it changes by at most δ, the result by"
        f" {_FORMULAS[ending.name]}; classes and margins are those of what enters"
    )
