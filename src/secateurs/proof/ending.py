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


def carry(ending: Ending, change: Tensor) -> Tensor:
    """Bounds on the changes of the results, flat per box, from those of what the map reads."""
    if ending.name == "sigmoid":
        return _outward((change / 4).tanh(), change, most=1.0)
    if ending.name == "tanh":
        return _outward(2 * (change / 2).tanh(), change, most=2.0)
    gap = _of_differences(change.reshape(len(change), *ending.inner), (ending.dim or 0) + 1)
    gap = gap.reshape(change.shape)
    if ending.name == "softmax":
        return _outward((gap / 4).tanh(), gap, most=1.0)
    return _outward(gap, gap, most=math.inf)


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
