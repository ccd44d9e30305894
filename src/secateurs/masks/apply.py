"""Applies masks to the model's own parameters, once, whatever wrappers have added to their names;
`secateurs.hold` keeps the zeros in training."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from secateurs.base.bits import clear_
from secateurs.base.parameters import (
    Params,
    aliases,
    check_model,
    mask_misfit,
    plain,
    unworkable,
    without_values,
)
from secateurs.base.parametrized import empty_norms
from secateurs.base.registry import unknown
from secateurs.base.sharding import local, local_mask, strange_placements
from secateurs.errors import ArgumentError, MaskError


def apply_(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Set the pruned entries of the model's parameters to exactly zero, in place (0, never -0, even
    where NaN was).

    Everything is checked first: on an error no parameter is changed. Gradients are left alone.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> apply_(model, {"weight": torch.tensor([[True, False]])})
    >>> model.weight[0, 1].item()
    0.0
    """
    check_model(model)
    parameters = dict(model.named_parameters())
    # Tied parameters are listed under all their names here and only once below, so that a mask
    # under another name is recognised and refused with the name to use.
    masks = fit_masks(masks, dict(model.named_parameters(remove_duplicate=False)))
    check(model, masks)
    with torch.no_grad():
        for name, mask in masks.items():
            parameter = parameters[name]
            # Bits are cleared, nothing is multiplied: NaN times 0 would stay NaN.
            clear_(local(parameter), local_mask(mask, parameter))


def check(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Raise one MaskError that lists every mask the model cannot take."""
    parameters, tied = dict(model.named_parameters()), aliases(model)
    problems = [
        text for name, mask in masks.items() if (text := _problem(parameters, tied, name, mask))
    ]
    if not problems:
        problems = lost_norms(model, masks)
    if problems:
        raise MaskError(
            f"{len(problems)} of {len(masks)} masks do not fit {type(model).__name__}:"
            f" {'; '.join(problems)}."
        )


def lost_norms(model: nn.Module, masks: Mapping[str, Tensor]) -> list[str]:
    """Which masks leave nothing of a norm by which a weight is divided, so that it would be NaN."""
    return [
        f"{name!r} has norms of which the mask keeps no entry, and divides by them"
        f" ({int(lost.count_nonzero())} weights would be NaN): keep an entry of each, or make the"
        " weight plain with torch.nn.utils.parametrize.remove_parametrizations (weight_norm of old:"
        " remove_weight_norm)"
        for name, lost in empty_norms(model, masks).items()
    ]


def _problem(
    parameters: Mapping[str, nn.Parameter],
    tied: Mapping[str, str],
    name: str,
    mask: object,
) -> str:
    if name in tied:
        return (
            f"{name!r} is the parameter {tied[name]!r} under another name: give its mask under"
            " that one"
        )
    if name not in parameters:
        return absent(name, parameters)
    parameter = parameters[name]
    problem = (
        without_values(parameter)
        or strange_placements(parameter)
        or unworkable(parameter)
        or mask_misfit(mask, parameter.shape)
    )
    return f"{name!r} {problem}" if problem else ""


# Masks, and the names under which a model, perhaps wrapped, has its parameters.


def fit_masks(
    masks: Params, known: Iterable[str], *, prefixes: Iterable[str] = ("",)
) -> dict[str, Tensor]:
    """Masks under the names a model knows, whatever wrappers have added to either. The result of
    `prune_` is taken as well.

    A known name is kept, also behind one of the prefixes, and so is a name that fits nothing.
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
        # An exact name always wins, and two candidates are not an answer: the caller's
        # checks then say so.
        if any(start + name in exact for start in starts) or len(there) != 1:
            result[name] = mask
        else:
            result[plain(name) if any(s + plain(name) in exact for s in starts) else there[0]] = (
                mask
            )
    return result


def masks_in(masks: object) -> Params:
    """The masks themselves: a mapping, or the result of a pruning that carries one."""
    inside = getattr(masks, "masks", None)
    found = inside if isinstance(inside, Mapping) and not isinstance(masks, Mapping) else masks
    if not isinstance(found, Mapping):
        raise ArgumentError(
            f"masks are a {type(masks).__name__}: give a mapping from parameter names to bool"
            " tensors, or what prune_ returned."
        )
    return found


def absent(name: str, known: Iterable[str]) -> str:
    """The sentence for a mask of a parameter that the model lacks; numbers are those of a nameless
    optimizer.
    """
    names = list(known)
    if name.isdigit() and not any(other.isdigit() for other in names):
        return (
            f"there is no parameter {name!r}: masks are numbered where the optimizer was given"
            " parameters without names. Pass the model, collapse_(model), or give the optimizer"
            " model.named_parameters()"
        )
    return unknown("parameter", name, names).rstrip(".")


def mask_misfits(masks: Params, tensors: Mapping[str, Tensor], kind: str) -> list[str]:
    """What is wrong with masks for these tensors: names that are none of theirs, and misfits.

    >>> mask_misfits({"w": torch.ones(2)}, {"v": torch.ones(2)}, "score")
    ["there is no score 'w'. Known: v"]
    """
    return [
        f"{name!r} {text}" if name in tensors else text
        for name, mask in masks.items()
        if (
            text := mask_misfit(mask, tensors[name].shape)
            if name in tensors
            else unknown(kind, name, tensors).rstrip(".")
        )
    ]
