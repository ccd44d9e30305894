"""The calls of `torch.nn.utils.prune`, on our own exact selection."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod, L1Unstructured, RandomUnstructured

from secateurs.compat.cuts import (
    Amount,
    norms_of,
    prune_channels,
    prune_random,
    prune_smallest,
)
from secateurs.compat.kept import keep, parameter_of
from secateurs.compat.methods import prune_together
from secateurs.compat.places import Place, allowed, check_shape, once
from secateurs.errors import ArgumentError


def l1_unstructured(
    module: nn.Module,
    name: str,
    amount: Amount,
    importance_scores: Tensor | None = None,
) -> nn.Module:
    """Prune the entries with the smallest |weight|, or |score| when scores are given.

    >>> layer = l1_unstructured(nn.Linear(10, 4), "weight", amount=0.3)
    >>> int((layer.weight == 0).sum()), int(layer.weight_mask.sum())
    (12, 28)
    """
    scores = {} if importance_scores is None else {(module, name): importance_scores}
    prune_smallest([(module, name)], amount, scores)
    return module


def random_unstructured(module: nn.Module, name: str, amount: Amount) -> nn.Module:
    """Prune entries at random; the same ones as torch for the same state of torch's generator."""
    prune_random([(module, name)], amount)
    return module


def ln_structured(
    module: nn.Module,
    name: str,
    amount: Amount,
    n: float | str,
    dim: int,
    importance_scores: Tensor | None = None,
) -> nn.Module:
    """Prune the channels along `dim` with the smallest Ln norm of their weights, or of their
    scores.
    """
    scores = (
        parameter_of(module, name).detach()
        if importance_scores is None
        else importance_scores
    )
    check_shape((module, name), scores)
    return prune_channels(
        module,
        name,
        amount,
        dim,
        lambda alive: norms_of(scores.index_select(dim, alive), n, dim),
    )


def random_structured(
    module: nn.Module, name: str, amount: Amount, dim: int
) -> nn.Module:
    """Prune channels along `dim` at random."""
    return prune_channels(
        module, name, amount, dim, lambda alive: torch.rand(len(alive))
    )


def global_unstructured(
    parameters: Iterable[Place],
    pruning_method: type[BasePruningMethod],
    importance_scores: Mapping[Place, Tensor] | None = None,
    **kwargs: Any,
) -> None:
    """Prune all the parameters as if they were one, by `L1Unstructured`, `RandomUnstructured` or an
    unstructured method of your own; its options follow, such as amount=0.2.

    No parameter is copied or concatenated for L1: 96 M weights take megabytes beside their masks. A
    method of your own is given one long vector, as in torch.
    """
    places = once(parameters)
    if not issubclass(pruning_method, BasePruningMethod):
        raise ArgumentError(
            f"pruning_method={pruning_method.__name__} is no BasePruningMethod: use"
            " L1Unstructured, RandomUnstructured or a class of your own with a compute_mask."
        )
    method: Any = pruning_method(**kwargs)
    # A subclass may say otherwise what is small: only the plain methods take the fast way.
    own = type(method).compute_mask
    if own is L1Unstructured.compute_mask:
        prune_smallest(places, method.amount, importance_scores or {})
    elif own is RandomUnstructured.compute_mask:
        prune_random(places, method.amount)
    else:
        prune_together(places, method, importance_scores or {})


def custom_from_mask(module: nn.Module, name: str, mask: Tensor) -> nn.Module:
    """Prune what the mask says is 0, besides what is pruned already."""
    check_shape((module, name), mask)
    return keep(module, name, (mask != 0) & allowed((module, name)))


def identity(module: nn.Module, name: str) -> nn.Module:
    """Prune nothing, but leave a mask on the module."""
    return keep(module, name, allowed((module, name)))
