"""Seconds of one layer by itself, whole and thinned."""

import copy
import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from secateurs.graph import Affine
from secateurs.ship.fast import accelerate

# A median of fewer says little; more than that many calls tell nothing new.
_FEWEST, _MOST = 7, 300
_ENOUGH = 0.03
"""Seconds after which no further call is timed."""


def layer_seconds(
    node: Affine,
    owner: nn.Module,
    x: Tensor,
    kind: str,
    density: float,
    generator: torch.Generator,
) -> float:
    """Median seconds of a layer of PyTorch at a density; other classes count as dense always."""
    if not isinstance(owner, nn.Linear | nn.modules.conv._ConvNd):
        weight = torch.randn(node.weight.shape if node.weight else (), dtype=x.dtype)
        return seconds(lambda: node.linear(x, weight))
    x = x.to(owner.weight.dtype)
    if kind == "channels":
        few, x = _narrower(owner, x, density)
        return seconds(lambda: few(x))
    thin = copy.deepcopy(owner)
    drawn = torch.rand(owner.weight.shape, generator=generator)
    thin.weight *= (drawn < density).to(owner.weight)
    # The fastest of torch and the kernels, as `accelerate` chooses for the whole network.
    fast = accelerate(thin.eval(), x)
    return seconds(lambda: fast(x))


def _narrower(
    owner: nn.Linear | nn.modules.conv._ConvNd, x: Tensor, density: float
) -> tuple[nn.Module, Tensor]:
    """A layer with this share of the weights, in fewer channels on both sides, and its input."""
    side = math.sqrt(density)
    if isinstance(owner, nn.Linear):
        into = math.ceil(side * owner.in_features)
        out = math.ceil(side * owner.out_features)
        return nn.Linear(into, out, owner.bias is not None).to(x), x[..., :into]
    # Whole groups go; a depthwise layer loses weights in proportion to its channels.
    groups = math.ceil(density * owner.groups) if owner.groups > 1 else 1
    left = groups / owner.groups if owner.groups > 1 else side
    into, out = (math.ceil(left * n) for n in (owner.in_channels, owner.out_channels))
    few = copy.deepcopy(owner)
    transposed = isinstance(owner, nn.modules.conv._ConvTransposeNd)
    shape = (into, out // groups) if transposed else (out, into // groups)
    few.weight = nn.Parameter(torch.randn(*shape, *owner.kernel_size).to(x))
    few.bias = None if owner.bias is None else nn.Parameter(torch.zeros(out).to(x))
    few.in_channels, few.out_channels, few.groups = into, out, groups
    return few, x[:, :into].contiguous()


def seconds(call: Callable[[], object]) -> float:
    """The median time of a call."""
    for _ in range(2):  # caches, lazy set-up
        call()
    taken: list[float] = []
    end = time.perf_counter() + _ENOUGH
    while len(taken) < _FEWEST or (len(taken) < _MOST and time.perf_counter() < end):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    # Other work on the machine only ever makes single calls longer.
    return statistics.median(taken)
