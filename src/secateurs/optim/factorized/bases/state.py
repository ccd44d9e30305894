"""The state of a base optimizer: saved ones checked and tried, renewed, and cleared where weights
die.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from secateurs.bits import clear_where_
from secateurs.errors import TrainingError
from secateurs.optim.factorized.bases.kinds import Kind
from secateurs.optim.factorized.members import Group


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
