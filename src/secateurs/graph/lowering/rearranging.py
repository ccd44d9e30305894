"""Operators that only copy and reorder: each is its own function in the graph."""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from secateurs.graph.builder import Builder
from secateurs.graph.lower import Many, Rule, Value, lowers
from secateurs.graph.sources import Source


def rearranges(*operators: Any) -> None:
    """Register operators that only copy and reorder: the operator itself is the function."""
    for operator in operators:
        lowers(operator)(_rearranging(operator))


def _rearranging(operator: Any) -> Rule:
    def rule(build: Builder, *args: Any, **kwargs: Any) -> Any:
        return apply_structural(build, operator, args, kwargs)

    return rule


def apply_structural(
    build: Builder,
    operator: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """`operator(*args)` as a Structural node, whatever the positions of its tensors."""
    leaves, spec = pytree.tree_flatten((list(args), kwargs or {}))
    indices = [
        i
        for i, leaf in enumerate(leaves)
        if isinstance(leaf, Source) and not leaf.floating
    ]
    # An index is read now: it decides which entry goes where, so it cannot stay open.
    literals = [
        _places(build.literal(leaf)) if i in indices else leaf
        for i, leaf in enumerate(leaves)
    ]
    # Tensors may stand anywhere among the arguments, also inside lists (cat).
    slots = [i for i, leaf in enumerate(literals) if isinstance(leaf, Value | Source)]

    def function(*xs: Tensor) -> Any:
        filled = [
            leaf.to(xs[0].device) if isinstance(leaf, Tensor) else leaf
            for leaf in literals
        ]
        for slot, x in zip(slots, xs, strict=True):
            filled[slot] = x
        call_args, call_kwargs = pytree.tree_unflatten(filled, spec)
        return operator(*call_args, **call_kwargs)

    xs: list[Any] = [literals[slot] for slot in slots]
    result = function(*[x.meta() for x in xs])
    detail = str(
        [_told(leaf) for leaf in literals if not isinstance(leaf, Value | Source)]
    )
    if isinstance(result, Tensor):
        return build.structural(function, *xs, detail=detail)
    return Many(
        lambda i: build.structural(
            lambda *ts: function(*ts)[i], *xs, detail=f"{detail}[{i}]"
        )
    )


def _places(index: Tensor) -> Tensor:
    """Flags as the places they pick: how many those are is then known without values."""
    flags = index.dtype == torch.bool and index.ndim == 1
    return index.nonzero().flatten() if flags else index


def _told(literal: Any) -> Any:
    """A literal as text: of a tensor all values, or their hash where they are many."""
    if not isinstance(literal, Tensor):
        return literal
    # Short lists are readable in a message; long ones only have to be compared.
    if literal.numel() <= 64:
        return literal.tolist()
    # As bytes: numpy knows no bfloat16.
    raw = literal.detach().cpu().contiguous().flatten().view(torch.uint8)
    values = raw.numpy().tobytes()
    return f"{tuple(literal.shape)} {hashlib.sha256(values).hexdigest()}"
