"""Torch optimizers as the base of `Factorized`: which of them can move factors, their options, and
their state.
"""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs.bits import clear_where_
from secateurs.errors import ArgumentError, TrainingError
from secateurs.registry import unknown

Group: TypeAlias = dict[str, Any]

REFUSED = {
    "SparseAdam": (
        "it takes sparse gradients only, and those of factors are dense. Use torch.optim.Adam"
    ),
    "Muon": (
        "it moves matrices only, and the factors of a matrix are one tensor of three dimensions."
        " Use torch.optim.AdamW, or leave Muon's matrices to an optimizer of their own"
    ),
}
OURS = {
    *(
        "params",
        "param_names",
        "depth",
        "strength",
        "decoupled",
        "init",
        "sigma",
        "match_variance",
        "zeros",
        "freeze",
    ),
    *("lean", "groups", "shared", "taken", "control"),
}
"""Keys of our parameter groups that never reach the base, even if it has an option of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """An optimizer class with its options, known to fit; `defaults` is what its parameter groups
    carry.
    """

    cls: type[Optimizer]
    options: Mapping[str, Any]
    defaults: Mapping[str, Any]

    def build(self, groups: Iterable[tuple[Group, list[Tensor]]]) -> Optimizer:
        """The optimizer of these tensors, with the options of our groups."""
        return self.cls(
            [{"params": leaves, **self.knobs(group)} for group, leaves in groups],
            **self.options,
        )

    def knobs(self, group: Group) -> dict[str, Any]:
        """The options of the base as our group has them: schedulers and users change them there."""
        return {
            key: group[key]
            for key in self.defaults
            if key in group and key not in OURS
        }


def kind(cls: type[Optimizer], given: Mapping[str, Any]) -> Kind:
    """The class with its options (weight decay 0), or an error that says why it cannot move
    factors.
    """
    if not (isinstance(cls, type) and issubclass(cls, Optimizer)):
        made = isinstance(cls, Optimizer)
        told = f"a {type(cls).__name__} already made" if made else repr(cls)
        way = f"torch.optim.{type(cls).__name__}" if made else "torch.optim.AdamW"
        raise ArgumentError(
            f"base={told} is not an optimizer class: give one such as {way}, and its options as"
            " base_kwargs={...}."
        )
    _check_class(cls)
    _check_options(cls, given)
    defaults = _probe(cls, given).defaults
    if "lr" not in defaults:
        raise ArgumentError(
            f"base={cls.__name__} has no lr in its defaults, which the decay and schedulers need."
        )
    # AdamW decays by default: its decay would press on the factors beside ours.
    decay = {"weight_decay": 0.0} if "weight_decay" in defaults else {}
    return Kind(cls=cls, options={**given, **decay}, defaults={**defaults, **decay})


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


def check_saved(base: Optimizer, saved: Mapping[str, Any]) -> None:
    """Whether a saved state comes from a `Factorized` of the same base class."""
    if not isinstance(saved.get("base"), Mapping):
        raise TrainingError(
            "cannot resume: the saved state has no base optimizer. Nothing was changed."
        )
    ours = type(base).__name__
    theirs = saved.get("base_class", ours)
    # States of old carry no class name; the keys of their groups tell nearly as much.
    lacks = set(base.defaults) - {
        key for group in saved["base"].get("param_groups", []) for key in group
    }
    if theirs != ours or ("base_class" not in saved and lacks):
        named = (
            theirs
            if theirs != ours
            else f"another class (no {', '.join(sorted(lacks))})"
        )
        raise TrainingError(
            f"cannot resume: the saved base optimizer is {named}, this one is {ours}. Nothing was"
            " changed; build Factorized with the saved base, or take the weights alone and call"
            " adopt_()."
        )


def try_load(trial: Optimizer, base: Optimizer, saved: Mapping[str, Any]) -> None:
    """Load the state into a trial of the base, so that an error in it is found before anything is
    written.
    """
    try:
        trial.load_state_dict(dict(saved))
    # What torch raises for a damaged state depends on where it is damaged.
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise TrainingError(
            f"cannot resume: the saved state of the base: {error}. Nothing was changed."
        ) from error
    wrong = [
        key
        for leaf, state in trial.state.items()
        for key, value in state.items()
        if isinstance(value, Tensor)
        and getattr(base.state.get(leaf, {}).get(key, value), "shape", None)
        != value.shape
    ]
    if wrong:
        raise TrainingError(
            f"cannot resume: {sorted(set(wrong))} of the base has another shape. Nothing was"
            " changed."
        )


def renew_(base: Optimizer, kind: Kind, group: Group, leaf: Tensor) -> None:
    """Give one tensor the state of a fresh base: none, for most; Adagrad starts with its sums."""
    fresh = kind.build([(group, [leaf])])
    base.state.pop(leaf, None)
    if leaf in fresh.state:
        base.state[leaf] = fresh.state[leaf]


def clear_(base: Optimizer, leaf: Tensor, dead: Tensor) -> None:
    """Zero the state of dead weights, or it would move them, and decay into denormal numbers."""
    for value in base.state.get(leaf, {}).values():
        if (
            isinstance(value, Tensor)
            # Step counts and row statistics have no entry per weight.
            and value.shape == leaf.shape
            and value.is_floating_point()
        ):
            clear_where_(value, dead)


def _check_class(cls: type[Optimizer]) -> None:
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


def _check_options(cls: type[Optimizer], given: Mapping[str, Any]) -> None:
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


def _probe(cls: type[Optimizer], given: Mapping[str, Any]) -> Optimizer:
    try:
        # Three dimensions: stacked factors of a matrix have as many, and some bases
        # take matrices only.
        return cls([nn.Parameter(torch.zeros(2, 1, 1))], **given)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ArgumentError(
            f"base={cls.__name__} with base_kwargs={dict(given)} is refused by itself: {error}"
        ) from error
