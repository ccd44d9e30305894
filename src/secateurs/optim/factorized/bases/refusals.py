"""What a base optimizer cannot be: classes and options that cannot move factors."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from secateurs.errors import ArgumentError
from secateurs.optim.factorized.members import Group
from secateurs.registry import unknown

REFUSED = {
    "SparseAdam": (
        "it takes sparse gradients only, and those of factors are dense. Use torch.optim.Adam"
    ),
    "Muon": (
        "it moves matrices only, and the factors of a matrix are one tensor of three dimensions."
        " Use torch.optim.AdamW, or leave Muon's matrices to an optimizer of their own"
    ),
}


def check_groups(groups: Iterable[Group]) -> None:
    """Factors are stacked here, one tensor per weight, and the penalty is theirs alone."""
    problems = [
        f"{key}={group[key]!r} in a parameter group"
        for group in groups
        for key in ("groups", "lean", "weight_decay")
        if group["depth"] is not None and group.get(key)
    ]
    if problems:
        raise ArgumentError(
            f"Factorized does not take {'; '.join(problems)}: groups= and lean= are for"
            " FactorizedSGD, the decay of factors is strength=, and weight_decay= is for groups"
            " with depth=None."
        )


def check_class(cls: type[Optimizer]) -> None:
    name = cls.__name__
    for refused, reason in REFUSED.items():
        # Older torch has no Muon; () is a subclass test that nothing passes.
        if issubclass(cls, getattr(torch.optim, refused, ())):
            raise ArgumentError(f"base={name} cannot move factors: {reason}.")
    # Asked of the signature and not of a list of names: foreign optimizers may need a
    # closure, too.
    _, *rest = inspect.signature(cls.step).parameters.values()
    if any(
        p.default is p.empty
        and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        for p in rest
    ):
        raise ArgumentError(
            f"base={name} cannot move factors: its step needs a closure, which would see weights"
            " between two steps. Use a base that steps once per gradient, such as"
            " torch.optim.AdamW."
        )


def check_options(cls: type[Optimizer], given: Mapping[str, Any]) -> None:
    _, *takes = inspect.signature(cls).parameters.values()
    names = [
        p.name for p in takes if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    if not any(p.kind is p.VAR_KEYWORD for p in takes):
        for key in sorted(set(given) - set(names)):
            raise ArgumentError(
                f"base_kwargs: {unknown(f'option of {cls.__name__}', key, names)}"
            )
    if given.get("weight_decay"):
        raise ArgumentError(
            f"base_kwargs has weight_decay={given['weight_decay']}: the penalty on the factors is"
            " strength=, with decoupled=True for a decay beside the gradient."
        )
    if given.get("differentiable"):
        raise ArgumentError(
            "base_kwargs has differentiable=True: a step on the factors is not recorded. Leave it"
            " out."
        )


def probe(cls: type[Optimizer], given: Mapping[str, Any]) -> Optimizer:
    try:
        # Three dimensions: stacked factors of a matrix have as many, and some bases
        # take matrices only.
        return cls([nn.Parameter(torch.zeros(2, 1, 1))], **given)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ArgumentError(
            f"base={cls.__name__} with base_kwargs={dict(given)} is refused by itself: {error}"
        ) from error
