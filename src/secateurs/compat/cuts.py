"""What torch's calls cut, by our own exact selection: the smallest, at random, whole channels."""

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import TypeAlias

import torch
from torch import Tensor, nn

from secateurs.compat.kept import keep, mask_of, parameter_of
from secateurs.compat.places import Place, allowed, check_shape
from secateurs.errors import ArgumentError
from secateurs.masks.topk import largest

Amount: TypeAlias = int | float
"""How much to prune of what is left: an int counts entries or channels, a float from 0 to 1 is a
fraction.
"""


def prune_smallest(
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


def prune_random(places: list[Place], amount: Amount) -> None:
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


def prune_channels(
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


def norms_of(channels: Tensor, n: float | str, dim: int) -> Tensor:
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
