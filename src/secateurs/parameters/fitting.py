"""Masks under the names a model knows, whatever wrappers have added to theirs or to its names."""

from collections.abc import Iterable, Mapping

from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.parameters.kinds import Params

_WRAPPED = ("module.", "_orig_mod.", "ema_model.")
"""What DistributedDataParallel, AveragedModel, torch.compile and ema-pytorch put before names."""


def plain(name: str) -> str:
    """The name without what wrappers put in front of it or, compiled parts, inside it.

    >>> plain("module._orig_mod.0.weight")
    '0.weight'
    """
    while found := next((w for w in _WRAPPED if name.startswith(w)), ""):
        name = name.removeprefix(found)
    return name.replace("._orig_mod.", ".")


def fitted(
    masks: Params, known: Iterable[str], *, prefixes: Iterable[str] = ("",)
) -> dict[str, Tensor]:
    """Masks under the names a model knows; what wrappers added to theirs or to its names is seen
    through. Takes the result of `prune_` as well.

    A name that is known stays, also behind one of the prefixes; what fits nothing stays, too.
    """
    masks = masks_in(masks)
    names = list(known)
    exact = set(names)
    short: dict[str, list[str]] = {}
    for name in names:
        short.setdefault(plain(name), []).append(name)
    starts = list(prefixes)
    result: dict[str, Tensor] = {}
    for name, mask in masks.items():
        there = short.get(plain(name), [])
        # An exact name always wins, and two candidates are no answer: the caller's
        # checks then say so.
        if any(start + name in exact for start in starts) or len(there) != 1:
            result[name] = mask
        else:
            result[
                plain(name)
                if any(s + plain(name) in exact for s in starts)
                else there[0]
            ] = mask
    return result


def masks_in(masks: object) -> Params:
    """The masks themselves: a mapping, or the result of a pruning that carries one."""
    inside = getattr(masks, "masks", None)
    found = (
        inside
        if isinstance(inside, Mapping) and not isinstance(masks, Mapping)
        else masks
    )
    if not isinstance(found, Mapping):
        raise ArgumentError(
            f"masks are a {type(masks).__name__}: give a mapping from parameter names to bool"
            " tensors, or what prune_ returned."
        )
    return found
