"""The product bound on what a pruning changes: only for networks it is proven for, and never below
the truth.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import torch
from torch import nn

from secateurs.parameters import owned

Norms: TypeAlias = Mapping[str, tuple[float, float]]
"""‖W*‖ and ‖W* − W‖ by parameter name."""

_ROOM = 1e-5
"""The norms are Lanczos values, which may lie below the truth by a part of this."""


def product_bound(dense: nn.Module, sparse: nn.Module, norms: Norms) -> float | None:
    """Π(‖W*‖+‖W*−W‖) − Π‖W*‖ over the layers in the order they run, a reused one as often as it is
    used.

    Needs a chain of linear layers without biases and activations with σ(0) = 0 that are 1-Lipschitz
    in evaluation mode, in `nn.Sequential`s, the same chain twice, and a norm for every weight; None
    otherwise.
    """
    before, after = _chain(dense), _chain(sparse)
    names = {id(parameter): name for name, parameter, _ in owned(dense)}
    same = len(before) == len(after) and all(map(_same_kind, before, after))
    if not same or _hooked(dense) or _hooked(sparse):
        return None
    twin = dict(sparse.named_parameters(remove_duplicate=False))
    error, reach = 0.0, 1.0
    for one, other in zip(before, after, strict=True):
        if not isinstance(one, nn.Linear) or not isinstance(other, nn.Linear):
            continue
        # Twins are matched by name, and must really be the weight that runs.
        name = names.get(id(one.weight), "")
        if name not in norms or not torch.equal(other.weight, twin[name]):
            return None
        # Both are rounded up: the product has to stay above the truth.
        norm, change = (value * (1 + _ROOM) for value in norms[name])
        # Builds Π(n + c) − Πn term by term. As a difference of the two products, a
        # small change would be lost to cancellation.
        error, reach = error * (norm + change) + reach * change, reach * norm
    return error


def _chain(model: nn.Module) -> list[nn.Module]:
    """The modules in the order they run; a reused one comes again (`children()` would leave it
    out).
    """
    if (
        isinstance(model, nn.Sequential)
        and type(model).forward is nn.Sequential.forward
    ):
        return [leaf for child in model for leaf in _chain(child)]
    return [model]


def _same_kind(one: nn.Module, other: nn.Module) -> bool:
    """The same admitted module; its settings show in its text."""
    return type(one) is type(other) and str(one) == str(other) and _admitted(one)


def _admitted(module: nn.Module) -> bool:
    rule = _ADMITTED.get(type(module))
    return rule is not None and rule(module)


def _always(_: nn.Module) -> bool:
    return True


_ADMITTED: dict[type[nn.Module], Callable[..., bool]] = {
    nn.Linear: lambda linear: linear.bias is None,
    nn.LeakyReLU: lambda leaky: abs(leaky.negative_slope) <= 1,
    # σ(0) = 0 only where the clipped range holds 0.
    nn.Hardtanh: lambda hard: hard.min_val <= 0 <= hard.max_val,
    # start_dim 0 would mix the inputs of a batch.
    nn.Flatten: lambda flatten: flatten.start_dim >= 1,
    **dict.fromkeys((nn.ReLU, nn.ReLU6, nn.Tanh, nn.Identity, nn.Dropout), _always),
}


def _hooked(model: nn.Module) -> bool:
    """Does anything change what a module returns?"""
    tables: Iterable[Mapping[int, object]] = (
        table
        for m in model.modules()
        for table in (m._forward_hooks, m._forward_pre_hooks)
    )
    return any(tables)
