"""Lipschitz constants of torch's modules without weights of their own to prune, in evaluation mode
and the 2-norm.
"""

from collections.abc import Callable
from typing import Any

from torch import nn


def lipschitz_constant(module: nn.Module) -> float | str:
    """The module's Lipschitz constant, or in words why none is known.

    >>> lipschitz_constant(nn.LeakyReLU(3.0)), lipschitz_constant(nn.LayerNorm(8))
    (3.0, 'has no known Lipschitz constant')
    """
    # The exact type: a subclass may compute anything.
    rule = LIPSCHITZ.get(type(module))
    return "has no known Lipschitz constant" if rule is None else rule(module)


def _always(constant: float) -> Callable[[Any], float | str]:
    return lambda module: constant


def _softplus(module: nn.Softplus) -> float | str:
    # Above the threshold torch returns x itself, a jump of log(1 + e^−threshold)/β.
    return (
        1.0
        if module.threshold >= 20
        else f"jumps at its threshold of {module.threshold:g}"
    )


def _pool(module: nn.MaxPool2d | nn.AvgPool2d) -> float | str:
    # Windows that do not overlap: each entry counts once, so the constant is 1. For
    # others `windows` counts how often.
    apart = all(
        s >= k
        for s, k in zip(_pair(module.stride), _pair(module.kernel_size), strict=True)
    )
    if getattr(module, "return_indices", False):
        return "returns indices"
    plain = (
        getattr(module, "dilation", 1) in (1, (1, 1))
        and getattr(module, "divisor_override", None) is None
    )
    return 1.0 if apart and plain else "overlaps, is dilated or has its own divisor"


def _batch_norm(module: nn.BatchNorm1d) -> float | str:
    if module.running_var is None:
        return "divides by the statistics of the batch"
    # In evaluation mode batch norm is a diagonal map: its norm is the largest slope.
    slope = (module.running_var.double() + module.eps).rsqrt()
    return float(
        (slope if module.weight is None else slope * module.weight.detach())
        .abs()
        .max()
    )


def _pair(size: int | tuple[int, ...]) -> tuple[int, ...]:
    return (size, size) if isinstance(size, int) else tuple(size)


def _leaky(slope: float) -> float:
    return max(1.0, abs(slope))


LIPSCHITZ: dict[type[nn.Module], Callable[[Any], float | str]] = {
    **dict.fromkeys((nn.Identity, nn.Flatten, nn.Unflatten), _always(1.0)),
    **dict.fromkeys(
        (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), _always(1.0)
    ),
    **dict.fromkeys((nn.AlphaDropout, nn.FeatureAlphaDropout), _always(1.0)),
    **dict.fromkeys(
        (nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.Tanh, nn.Softsign, nn.Softshrink),
        _always(1.0),
    ),
    **dict.fromkeys((nn.Tanhshrink, nn.LogSigmoid), _always(1.0)),
    # For x < 0 CELU has the slope e^{x/α}, which grows without end where α < 0.
    nn.CELU: lambda module: (
        1.0 if module.alpha > 0 else "grows without bound for alpha < 0"
    ),
    nn.Sigmoid: _always(1 / 4),
    nn.Hardsigmoid: _always(1 / 6),
    nn.Softplus: _softplus,
    nn.ELU: lambda module: _leaky(module.alpha),
    # scale · α, the slope just left of 0, is above the slope `scale` on the right.
    nn.SELU: _always(1.0507009873554805 * 1.6732632423543772),
    nn.GELU: _always(1.13),  # largest slope 1.1289 (erf), 1.1290 (tanh)
    nn.SiLU: _always(1.1),  # 1.0998
    nn.Mish: _always(1.089),  # 1.0885
    nn.Hardswish: _always(1.5),
    nn.LeakyReLU: lambda module: _leaky(module.negative_slope),
    nn.RReLU: lambda module: _leaky((module.lower + module.upper) / 2),
    nn.PReLU: lambda module: _leaky(float(module.weight.detach().abs().max())),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d), _batch_norm),
    **dict.fromkeys((nn.MaxPool2d, nn.AvgPool2d), _pool),
}
"""A rule for each exact type; a new type is one entry."""
