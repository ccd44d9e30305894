"""What a saved state must have before an optimizer takes it: everything, of the same shape, and
finite.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

from secateurs.errors import TrainingError
from secateurs.optim.factorized.arguments import number
from secateurs.optim.factorized.strength.forecast import ROUNDING

if TYPE_CHECKING:
    from secateurs.optim.factorized.optimizer import FactorizedOptimizer

Saved: TypeAlias = Mapping[str, Any]

NEEDED = ("lr", "strength", "depth", "momentum", "lean", "groups", "shared", "freeze", "taken")
"""Options that a step, or a check, looks at; those of the base of a `Factorized` are its own
business.
"""
FIXED = ("depth", "lean", "groups", "shared")
"""Options that the layout of the factors depends on."""


def check(optimizer: "FactorizedOptimizer", saved: Saved) -> None:
    """Refuse, before anything is changed, a state that this optimizer could not have saved."""
    like_a_state(saved)
    ours, theirs = optimizer.param_groups, saved["param_groups"]
    if len(ours) != len(theirs) or any(
        len(a["params"]) != len(b["params"]) for a, b in zip(ours, theirs, strict=True)
    ):
        raise TrainingError(
            "cannot resume: the saved optimizer has other parameter groups. Nothing was changed."
        )
    problems = [text for i in range(len(ours)) for text in _group(i, ours[i], theirs[i])]
    problems += [*_control(optimizer, theirs[0]), *_states(optimizer, saved)]
    if problems:
        raise TrainingError(f"cannot resume: {'; '.join(problems)}. Nothing was changed.")


def like_a_state(saved: object) -> None:
    """Whether this looks like a state at all."""
    whole = isinstance(saved, Mapping) and isinstance(saved.get("state"), Mapping)
    groups = saved.get("param_groups") if isinstance(saved, Mapping) else None
    listed = (
        isinstance(groups, Sequence)
        and groups
        and all(isinstance(g, Mapping) and "params" in g for g in groups)
    )
    if not (whole and listed):
        kind = (
            f"a {type(saved).__name__}"
            if not isinstance(saved, Mapping)
            else f"a dict of {list(saved)}"
        )
        raise TrainingError(
            f"cannot resume from {kind}: it needs 'state' and 'param_groups', as state_dict() has"
            " them."
        )


def _group(i: int, ours: Saved, theirs: Saved) -> Iterator[str]:
    missing = [key for key in NEEDED if key in ours and key not in theirs]
    if missing:
        yield f"{', '.join(missing)} of group {i} is missing"
        return
    for key in FIXED:
        if ours[key] != theirs[key]:
            yield f"{key}={theirs[key]!r} was saved, {key}={ours[key]!r} is set in group {i}"
    for key in ("lr", "strength", "freeze", "momentum", "taken", "shrunk"):
        value = theirs.get(key, 0.0)
        value = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        if not (number(value) and value >= -ROUNDING):
            yield f"in group {i} {key}={value!r} is not a finite number from 0 up"


def _control(optimizer: "FactorizedOptimizer", first: Saved) -> Iterator[str]:
    """The state of the controller of a target, which is kept in the first group."""
    state, control = first.get("control"), optimizer.plan.control
    if state is None:
        return
    if control is None:
        yield (
            "the saved run was steered to a target; give this optimizer the same target_sparsity="
            " and steps="
        )
    elif (
        not isinstance(state, Mapping)
        or state.keys() != control.start().keys()
        or not all(map(number, state.values()))
    ):
        yield f"control={state!r} is no state of a controller"


def _states(optimizer: "FactorizedOptimizer", saved: Saved) -> Iterator[str]:
    names = optimizer.names()
    for ours, theirs in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        for parameter, index in zip(ours["params"], theirs["params"], strict=True):
            have, given = optimizer.state.get(parameter, {}), saved["state"].get(index, {})
            for key, value in given.items():
                if isinstance(value, Tensor) and not bool(value.isfinite().all()):
                    yield f"{key} of {names[parameter]!r} is not finite"
            for key, tensor in have.items():
                if (
                    isinstance(tensor, Tensor)
                    and getattr(given.get(key), "shape", None) != tensor.shape
                ):
                    yield f"{key} of {names[parameter]!r} is missing or has another shape"
