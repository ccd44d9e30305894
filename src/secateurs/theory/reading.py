"""Reads the chain of layers that `plan` speaks about off a model: widths, ranges of the entries, map sizes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError, TheoryError
from secateurs.theory.masked_norms import half_spectrum


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Widths (channels) d_0…d_l and K of the entries' range ±K/√(taps · max(d_k, d_{k−1})).

    Convolutions first, one linear layer last: `taps` and `frequencies` of each convolution, `last_map` the positions
    of the maps that the linear layer sees. A chain of linear layers has no `taps`.
    """

    widths: tuple[int, ...]
    scale: float = 1.0
    taps: tuple[int, ...] = ()
    frequencies: tuple[int, ...] = ()
    last_map: int = 1


def read_chain(model_or_widths: nn.Module | Sequence[int], input_size: int | Sequence[int] | None) -> Chain:
    """The chain of a model, or of the given widths. `input_size`: height and width of the input of a convolution."""
    if not isinstance(model_or_widths, nn.Module):
        return Chain(widths=tuple(model_or_widths))
    weights = [p for m in model_or_widths.modules() for n, p in m.named_parameters(recurse=False) if n == "weight"]
    if all(p.ndim <= 2 for p in weights):
        return _linear([p.detach() for p in weights if p.ndim == 2])
    return _convolutional(model_or_widths, input_size)


def _linear(layers: list[Tensor]) -> Chain:
    chained = all(a.shape[0] == b.shape[1] for a, b in pairwise(layers))
    if not layers or not chained:
        raise TheoryError("the linear layers of this model do not form one chain; give the widths instead.")
    return Chain(widths=(layers[0].shape[1], *(w.shape[0] for w in layers)), scale=max(_range(w) for w in layers))


def _range(weight: Tensor) -> float:
    """K of one layer: max|w| √(taps · max(rows, columns))."""
    return float(weight.abs().max()) * math.sqrt(weight[0, 0].numel() * max(weight.shape[:2]))


_HARMLESS = (nn.ReLU, nn.Tanh, nn.Identity, nn.Flatten, nn.Dropout, nn.Dropout2d)
"""No weights, 1-Lipschitz, zero at zero (in evaluation mode)."""


def _convolutional(model: nn.Module, input_size: int | Sequence[int] | None) -> Chain:
    modules = list(_flat(model))
    convs = [m for m in modules if isinstance(m, nn.Conv2d)]
    last = next((m for m in modules if isinstance(m, nn.Linear)), None)
    _check(modules, convs, last)
    if input_size is None:
        raise ArgumentError("this model has convolutions: give input_size=, the height and width of its input.")
    sizes = _map_sizes(modules, convs, (input_size,) * 2 if isinstance(input_size, int) else tuple(input_size))
    *sizes, end = sizes
    if last is None or last.in_features != convs[-1].out_channels * math.prod(end):
        raise TheoryError("the linear layer does not take the maps of the last convolution for this input_size.")
    weights = [*(m.weight.detach() for m in convs), last.weight.detach()]
    return Chain(
        widths=(convs[0].in_channels, *(m.out_channels for m in convs), last.out_features),
        scale=max(_range(w) for w in weights),
        taps=tuple(w[0, 0].numel() for w in weights[:-1]),
        frequencies=tuple(
            half_spectrum(_padded(m, size), w[0, 0].numel())
            for m, size, w in zip(convs, sizes, weights[:-1], strict=True)
        ),
        last_map=math.prod(end),
    )


def _flat(model: nn.Module) -> list[nn.Module]:
    if isinstance(model, nn.Sequential):
        return [leaf for child in model.children() for leaf in _flat(child)]
    return [model]


def _check(modules: list[nn.Module], convs: list[nn.Conv2d], last: nn.Linear | None) -> None:
    """One chain of modules whose Lipschitz constants are known, convolutions first, one linear layer last."""
    problems = [f"{type(m).__name__}{_why(m)}" for m in modules if _why(m) is not None]
    if last is None or sum(isinstance(m, nn.Linear) for m in modules) > 1 or modules.index(last) != len(modules) - 1:
        problems.append("it does not end in its only linear layer")
    if problems:
        raise TheoryError(
            "plan() reads an nn.Sequential of convolutions, activations, pooling without overlap and one linear layer "
            f"at the end; this model has: {'; '.join(dict.fromkeys(problems))}. Call theory.theorem_3_explicit instead."
        )
    if not all(a.out_channels == b.in_channels for a, b in pairwise(convs)):
        raise TheoryError("the convolutions of this model do not form one chain.")


def _why(module: nn.Module) -> str | None:
    """What keeps a module out of the chain; None when nothing does."""
    if isinstance(module, nn.Conv2d):
        unknown = module.groups != 1 or module.padding_mode not in ("zeros", "circular")
        return f" with groups = {module.groups}, padding_mode = {module.padding_mode!r}" if unknown else None
    if isinstance(module, nn.MaxPool2d | nn.AvgPool2d):
        apart = all(s >= k for s, k in zip(_pair(module.stride), _pair(module.kernel_size), strict=True))
        plain = getattr(module, "dilation", 1) in (1, (1, 1)) and getattr(module, "divisor_override", None) is None
        return None if apart and plain else " that overlaps, is dilated or has its own divisor"
    if isinstance(module, nn.LeakyReLU):
        return None if abs(module.negative_slope) <= 1 else f" of slope {module.negative_slope:g}"
    return None if isinstance(module, (*_HARMLESS, nn.Linear)) else ""


def _pair(size: int | tuple[int, ...]) -> tuple[int, ...]:
    return (size, size) if isinstance(size, int) else tuple(size)


def _map_sizes(modules: list[nn.Module], convs: list[nn.Conv2d], size: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Height and width at the entry of every convolution, and at the end, by running the shapes on the meta device."""
    x, sizes = torch.empty(1, convs[0].in_channels, *size, device="meta"), []
    for module in modules[:-1]:
        if isinstance(module, nn.Conv2d):
            sizes.append(tuple(x.shape[-2:]))
            x = _conv_shape(module, x)
        elif isinstance(module, nn.MaxPool2d | nn.AvgPool2d):
            x = module(x)
    return [*sizes, tuple(x.shape[-2:])]


def _conv_shape(module: nn.Conv2d, x: Tensor) -> Tensor:
    weight = torch.empty_like(module.weight, device="meta")
    pad = [before for axis in _padding(module) for before in axis]
    padded = torch.empty(*x.shape[:2], x.shape[2] + sum(pad[:2]), x.shape[3] + sum(pad[2:]), device="meta")
    return nn.functional.conv2d(padded, weight, stride=module.stride, dilation=module.dilation)


def _padding(module: nn.Conv2d) -> list[tuple[int, int]]:
    """Rows before and after, columns before and after."""
    if module.padding == "valid":
        return [(0, 0), (0, 0)]
    if module.padding == "same":
        whole = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        return [(total // 2, total - total // 2) for total in whole]
    return [(int(p), int(p)) for p in _pair(module.padding)]  # type: ignore[arg-type]


def _padded(module: nn.Conv2d, size: tuple[int, ...]) -> tuple[int, ...]:
    """The map on which the circular convolution contains this one: a stride only leaves outputs out."""
    if module.padding_mode == "circular":
        return size
    return tuple(n + sum(pad) for n, pad in zip(size, _padding(module), strict=True))
