"""Torch optimizers as the base of `Factorized`: which of them can move factors, their options, and
their state.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from secateurs.errors import ArgumentError
from secateurs.optim.factorized.bases.refusals import (
    check_class,
    check_options,
    probe,
)
from secateurs.optim.factorized.members import Group

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
    check_class(cls)
    check_options(cls, given)
    defaults = probe(cls, given).defaults
    if "lr" not in defaults:
        raise ArgumentError(
            f"base={cls.__name__} has no lr in its defaults, which the decay and schedulers need."
        )
    # AdamW decays by default: its decay would press on the factors beside ours.
    decay = {"weight_decay": 0.0} if "weight_decay" in defaults else {}
    return Kind(cls=cls, options={**given, **decay}, defaults={**defaults, **decay})
