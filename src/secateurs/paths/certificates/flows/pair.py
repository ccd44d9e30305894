"""Two parameter vectors of one graph, and batches of boxes through node functions that know a batch
of one.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.graph.primitives import Add, Affine
from secateurs.graph.sources import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The effective weights and biases of f and g at each affine node, in float64."""

    f: State
    g: State

    def weights(self, node: Affine) -> tuple[Tensor | None, Tensor | None]:
        """W of f and W' of g; None where the node only adds."""
        return (
            (None, None)
            if node.weight is None
            else (node.weight(self.f), node.weight(self.g))
        )

    def biases(self, node: Affine) -> tuple[Tensor, Tensor] | None:
        """b of f and b' of g in a shape that broadcasts over the node's value."""
        return (
            None
            if node.bias is None
            else (node.spread(node.bias(self.f)), node.spread(node.bias(self.g)))
        )


def lift(function: Callable[..., Tensor], *xs: Tensor) -> Tensor:
    """Apply a function of one sample to every box: values are (boxes, *shape of the node)."""
    boxes = max(map(len, xs))
    # Constants come as one box.
    # Nodes know the shape of one sample; vmap adds the boxes without a copy of any
    # weight.
    return torch.func.vmap(function)(*(x.expand(boxes, *x.shape[1:]) for x in xs))


def linear(node: Affine, x: Tensor, weight: Tensor | None) -> Tensor:
    """The part of an affine node that is linear in x, for every box."""
    return lift(lambda sample: node.linear(sample, weight), x)


def terms(node: Affine, x: Tensor, weight: Tensor | None) -> int:
    """The largest number of products in one output entry: the map applied to ones with all weights
    one.
    """
    if weight is None:
        return 1
    with torch.no_grad():
        # The largest entry: at a padded border an output has fewer terms.
        return int(node.linear(torch.ones_like(x[0]), torch.ones_like(weight)).amax())


def terms_back(node: Affine, x: Tensor, weight: Tensor | None) -> int:
    """The same of the transposed map: how many outputs read one input."""
    if weight is None:
        return 1
    with torch.enable_grad():
        ones = torch.ones_like(x[0]).requires_grad_()
        total = node.linear(ones, torch.ones_like(weight)).sum()
    return int(torch.autograd.grad(total, ones)[0].amax())


def gamma(count: int, unit: float) -> float:
    """γ_k = k·u/(1 − k·u): the relative error of a sum of k rounded products, in any order (Higham
    2002, §3.1).
    """
    return (
        0.0
        if unit == 0
        # Beyond 1/u terms the formula says nothing, so nothing is promised.
        else (count * unit / (1 - count * unit) if count * unit < 1 else float("inf"))
    )


def gap(one: Tensor | None, two: Tensor | None) -> Tensor | None:
    """W − W', None where the node has no weight (and so no difference)."""
    return None if one is None or two is None else one - two


def magnitude(weight: Tensor | None) -> Tensor | None:
    """|W|."""
    return None if weight is None else weight.abs()


def signed_sum(node: Add, xs: list[Tensor]) -> Tensor:
    """Σ sign · x."""
    total = torch.zeros_like(xs[0])
    for sign, x in zip(node.signs, xs, strict=True):
        total = total + x if sign > 0 else total - x
    return total
