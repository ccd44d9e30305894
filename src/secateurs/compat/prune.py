"""The calls of `torch.nn.utils.prune`, on our own exact selection."""

from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod, L1Unstructured, RandomUnstructured

from secateurs.compat.kept import keep, mask_of, parameter_of
from secateurs.compat.methods import prune_together
from secateurs.compat.places import Place, allowed, check_shape, once
from secateurs.errors import ArgumentError
from secateurs.masks.ranking.topk import largest

Amount: TypeAlias = int | float
"""How much to prune of what is left: an int counts entries or channels, a float from 0 to 1 is a
fraction.
"""


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
    _prune_smallest([(module, name)], amount, scores)
    return module


def random_unstructured(module: nn.Module, name: str, amount: Amount) -> nn.Module:
    """Prune entries at random; the same ones as torch for the same state of torch's generator."""
    _prune_random([(module, name)], amount)
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
    return _prune_channels(
        module,
        name,
        amount,
        dim,
        lambda alive: _norms(scores.index_select(dim, alive), n, dim),
    )


def random_structured(
    module: nn.Module, name: str, amount: Amount, dim: int
) -> nn.Module:
    """Prune channels along `dim` at random."""
    return _prune_channels(
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
        _prune_smallest(places, method.amount, importance_scores or {})
    elif own is RandomUnstructured.compute_mask:
        _prune_random(places, method.amount)
    else:
        prune_together(places, method, importance_scores or {})


def custom_from_mask(module: nn.Module, name: str, mask: Tensor) -> nn.Module:
    """Prune what the mask says is 0, besides what is pruned already."""
    check_shape((module, name), mask)
    return keep(module, name, (mask != 0) & allowed((module, name)))


def identity(module: nn.Module, name: str) -> nn.Module:
    """Prune nothing, but leave a mask on the module."""
    return keep(module, name, allowed((module, name)))


def _prune_smallest(
    places: list[Place], amount: Amount, importance: Mapping[Place, Tensor]
) -> None:
    scores = {
        str(i): importance.get(place, parameter_of(*place)).detach()
        for i, place in enumerate(places)
    }
    for place, score in zip(places, scores.values(), strict=True):
        check_shape(place, score)
    known = {
        key: allowed(place)
        for key, place in zip(scores, places, strict=True)
        if mask_of(*place) is not None
    }
    room = sum(
        int(known[key].count_nonzero()) if key in known else score.numel()
        for key, score in scores.items()
    )
    masks = largest(scores, room - _pruned(amount, room), within=known, absolute=True)
    for key, (module, name) in zip(scores, places, strict=True):
        # Not all masks twice at a time: they take an eighth of the memory.
        keep(module, name, masks.pop(key))


def _prune_random(places: list[Place], amount: Amount) -> None:
    rooms = [allowed(place) for place in places]
    room = sum(int(mask.sum()) for mask in rooms)
    pruned = _pruned(amount, room)
    first = parameter_of(*places[0])
    # Torch prunes the largest numbers drawn.
    lot = torch.rand(room, dtype=first.dtype, device=first.device)
    kept = largest({"": -lot}, room - pruned)[""]
    parts = torch.split(kept, [int(mask.sum()) for mask in rooms])
    for (module, name), mask, part in zip(places, rooms, parts, strict=True):
        # A clone, since the mask is read as an index while it is written.
        mask[mask.clone()] = part.to(mask.device)
        keep(module, name, mask)


def _prune_channels(
    module: nn.Module,
    name: str,
    amount: Amount,
    dim: int,
    score: Callable[[Tensor], Tensor],
) -> nn.Module:
    left = allowed((module, name))
    if left.ndim < 2 or not -left.ndim <= dim < left.ndim:
        raise ArgumentError(
            f"{name!r} of shape {tuple(left.shape)} has no channels along dim={dim}."
        )
    # A channel of which anything is left counts as there, as in torch.
    channels = left.any(
        tuple(other for other in range(left.ndim) if other != dim % left.ndim)
    )
    alive = channels.nonzero().flatten()
    pruned = _pruned(amount, len(alive))
    if pruned:
        kept = largest({"": score(alive)}, len(alive) - pruned)[""]
        channels[alive] = kept.to(channels.device)
    shape = [1] * left.ndim
    shape[dim] = -1
    return keep(module, name, left & channels.reshape(shape))


def _norms(channels: Tensor, n: float | str, dim: int) -> Tensor:
    others = [other for other in range(channels.ndim) if other != dim % channels.ndim]
    # As torch computes them, to the last bit.
    norms: Tensor = torch.norm(channels, p=n, dim=others)
    return norms


def _pruned(amount: Amount, room: int) -> int:
    """How many to prune of what is left, rounded as torch does."""
    if isinstance(amount, bool) or not isinstance(amount, Real):
        raise ArgumentError(
            f"amount={amount!r} is neither a number of entries nor a fraction."
        )
    # 1 is one entry and 1.0 is everything: the type decides, as in torch.
    limit = room if isinstance(amount, Integral) else 1
    if not 0 <= amount <= limit:
        raise ArgumentError(
            f"amount={amount!r} is not between 0 and {limit}: {room} are left to prune."
        )
    return (
        int(amount) if isinstance(amount, Integral) else round(float(amount) * room)
    )
