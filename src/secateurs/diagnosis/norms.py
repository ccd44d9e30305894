"""The norm of what one parameter does in a network: of a matrix, or of every convolution that uses
it.
"""

import math
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from secateurs.theory import conv_operator_norm, spectral_norms
from secateurs.theory.operator_norms.repeats import multiplicity


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A convolution and the size of a map it was given (of a transposed one: of its output)."""

    conv: _ConvNd
    size: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorm:
    """lower ≤ ‖W‖₂ ≤ upper, and of what."""

    kind: str
    lower: float
    upper: float


def layer_norm(owner: nn.Module, weight: Tensor, uses: frozenset[Use]) -> LayerNorm:
    """The largest over all uses; without any, a bound that holds on every map."""
    if isinstance(owner, _ConvNd) and uses:
        found = [_norm(use, weight) for use in uses]
        # One bracket among the uses makes the largest a bracket too.
        exact = all(one.kind == "convolution" for one in found)
        return LayerNorm(
            kind="convolution" if exact else "convolution, upper bound",
            lower=max(one.lower for one in found),
            upper=max(one.upper for one in found),
        )
    value = float(spectral_norms(weight.flatten(1)).values)
    if isinstance(owner, _ConvNd):
        # Extracting patches repeats an entry once per tap at most, padding some times
        # more; the norm of both is the root of that.
        bound = value * math.sqrt(math.prod(weight.shape[2:]) * _repeats(owner))
        return LayerNorm(kind="unfolded kernel, upper bound", lower=0.0, upper=bound)
    return LayerNorm(
        kind="matrix" if weight.ndim == 2 else "unfolded tensor",
        lower=value,
        upper=value,
    )


def _norm(use: Use, weight: Tensor) -> LayerNorm:
    """A transposed convolution is the adjoint of the convolution with the same arguments, from
    output to input.
    """
    conv = use.conv
    found = conv_operator_norm(
        weight,
        use.size,
        padding=_pads(conv),
        padding_mode=conv.padding_mode,
        stride=conv.stride,
        dilation=conv.dilation,
        groups=conv.groups,
        certify=True,
    )
    kind = "convolution" if found.exact else "convolution, upper bound"
    return LayerNorm(kind=kind, lower=found.lower, upper=found.upper)


def _pads(conv: _ConvNd) -> tuple[tuple[int, int], ...]:
    """Rows before and after, for each axis; an even kernel has one more after with "same", as in
    torch.
    """
    if conv.padding == "valid":
        return ((0, 0),) * len(conv.kernel_size)
    if conv.padding == "same":
        reach = (
            d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)
        )
        # torch puts the odd row behind.
        return tuple((whole // 2, whole - whole // 2) for whole in reach)
    return tuple((int(p), int(p)) for p in conv.padding)


def _repeats(conv: _ConvNd) -> int:
    """‖padding‖² on the map where it is largest; maps longer than both borders and two repeat no
    more.
    """
    mode, worst = conv.padding_mode, 1
    for pair in _pads(conv):
        first = {"circular": max(1, *pair), "reflect": max(pair) + 1}.get(mode, 1)
        worst *= max(
            multiplicity(mode, n, pair) for n in range(first, first + sum(pair) + 3)
        )
    return worst
