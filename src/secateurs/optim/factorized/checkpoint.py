"""Resuming: what a saved state must have before an optimizer takes it, and what torch casts on
loading, put back as it was saved.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from secateurs.base.parameters import is_sharded, plain
from secateurs.base.sharding import agree, local, local_mask
from secateurs.base.sharding import joined as joined_to
from secateurs.errors import TrainingError
from secateurs.optim.factorized.forecast import ROUNDING
from secateurs.optim.factorized.members import Group, Members, layout
from secateurs.optim.factorized.options import is_number
from secateurs.optim.factorized.schedules import Control

Saved: TypeAlias = Mapping[str, Any]

NEEDED = (
    "lr",
    "strength",
    "depth",
    "momentum",
    "freeze",
    "taken",
    "shrunk",
)
"""Options that a step, or a check, reads; those of the base of a `Factorized` are left to the
base.
"""


def check(members: Members, control: Control | None, saved: Saved) -> None:
    """Refuse, before anything is changed, a state that this optimizer could not have saved."""
    like_a_state(saved)
    ours, theirs = members.groups, saved["param_groups"]
    _same_sizes(ours, theirs)
    problems = [text for i in range(len(ours)) for text in _group(i, ours[i], theirs[i])]
    problems += [*_control(control, theirs[0]), *_states(members, saved)]
    problems = problems or list(_of_another(members, saved))
    (wrong,) = agree([bool(problems)], (p for _, p in members.every()))
    if wrong:
        problems = problems or ["another process says what is wrong"]
        raise TrainingError(f"cannot resume: {'; '.join(problems)}. Nothing was changed.")


def in_pieces(optimizer: Optimizer, saved: Saved) -> dict[str, Any]:
    """A saved state of whole tensors, as one process saves it, cut as the parameters here are."""
    states = dict(saved["state"])
    for parameter, index in _pairs(optimizer, saved):
        if index in states and is_sharded(parameter):
            states[index] = _cut(states[index], parameter)
    return {**saved, "state": states}


def _cut(value: Any, parameter: Tensor) -> Any:
    if isinstance(value, Mapping):
        return {key: _cut(inner, parameter) for key, inner in value.items()}
    if not isinstance(value, Tensor) or is_sharded(value):
        return value
    # Factors have one dimension in front; what is shaped otherwise belongs to no entry.
    if parameter.shape not in (value.shape, value.shape[1:]):
        return value
    piece = local_mask(value.to(parameter.device), parameter)
    return joined_to(piece.contiguous(), parameter)


def in_our_order(groups: Sequence[Group], saved: Saved) -> dict[str, Any]:
    """The saved state with its parameters in the order of these groups.

    torch matches a state to an optimizer by position alone. Where both sides know the names of
    their parameters, the names decide, and other names are refused.
    """
    like_a_state(saved)
    _same_sizes(groups, saved["param_groups"])
    orders = [
        _order(i, ours, theirs)
        for i, (ours, theirs) in enumerate(zip(groups, saved["param_groups"], strict=True))
    ]
    if problems := [order for order in orders if isinstance(order, str)]:
        raise TrainingError(
            f"cannot resume: {'; '.join(problems)}. Nothing was changed; give both optimizers the"
            " same parameters in the same groups."
        )
    turned = [
        _turned(theirs, order)
        for theirs, order in zip(saved["param_groups"], orders, strict=True)
        if not isinstance(order, str)
    ]
    return {**saved, "param_groups": turned}


def _same_sizes(ours: Sequence[Saved], theirs: Sequence[Saved]) -> None:
    if len(ours) != len(theirs) or any(
        len(a["params"]) != len(b["params"]) for a, b in zip(ours, theirs, strict=True)
    ):
        raise TrainingError(
            "cannot resume: the saved optimizer has other parameter groups. Nothing was changed."
        )


def _order(i: int, ours: Saved, theirs: Saved) -> list[int] | str:
    """The position of each of our parameters in the saved group; and, in words, what does not
    fit.
    """
    here, there = ours.get("param_names"), theirs.get("param_names")
    as_it_is = list(range(len(ours["params"])))
    if not here or not there:
        return as_it_is
    if len(there) != len(as_it_is):
        return f"group {i} was saved with {len(there)} names of {len(as_it_is)} parameters"
    if set(here) != set(there):
        # A wrapper's prefix does not make it another name.
        here, there = [plain(name) for name in here], [plain(str(n)) for n in there]
    places = {name: at for at, name in enumerate(there)}
    if set(here) != set(there) or len(places) != len(there):
        extra = [name for name in there if name not in here]
        missing = [name for name in here if name not in there]
        return (
            f"group {i} was saved with other parameters: {_some(extra)} there,"
            f" {_some(missing)} here"
        )
    return [places[name] for name in here]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:4]))
    return (shown + (" and more" if names[4:] else "")) or "none"


def _turned(group: Saved, order: Sequence[int]) -> dict[str, Any]:
    listed = ("params", *(["param_names"] if group.get("param_names") else []))
    return {**group, **{key: [group[key][at] for at in order] for key in listed}}


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


def restore_(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Every tensor of the state in the dtype it was saved in, and as a copy: torch casts it to that
    of the weight.

    Devices stay as torch has chosen them, since some optimizers keep their step count on the CPU.
    """
    for parameter, index in _pairs(optimizer, saved):
        for key, value in saved["state"].get(index, {}).items():
            if isinstance(value, Tensor):
                device = optimizer.state[parameter][key].device
                # A copy: a state that two optimizers load must not be shared by them.
                optimizer.state[parameter][key] = value.detach().to(device, copy=True)


def factors_only(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a state that is not its base's: factors, and options of groups."""
    states = {
        index: {key: value for key, value in state.items() if key == "factors"}
        for index, state in saved["state"].items()
    }
    groups = [
        {key: value for key, value in group.items() if key != "base"}
        for group in saved["param_groups"]
    ]
    return {"state": states, "param_groups": groups}


def joined(optimizer: Optimizer, saved: Mapping[str, Any]) -> dict[Tensor, dict[str, Any]]:
    """Saved states by parameter: of those, too, that are still frozen here and had joined there."""
    return {
        p: saved["state"][index] for p, index in _pairs(optimizer, saved) if index in saved["state"]
    }


def back_into_(optimizer: Optimizer, held: Mapping[Tensor, dict[str, Any]]) -> None:
    """Write the loaded values into the tensors that were the state before, and make these the state
    again.
    """
    for parameter, state in held.items():
        for key, value in state.items():
            value.copy_(optimizer.state[parameter][key])
        optimizer.state[parameter] = state


def _group(i: int, ours: Saved, theirs: Saved) -> Iterator[str]:
    missing = [key for key in NEEDED if key in ours and key not in theirs]
    # Without these keys the comparisons below would raise a KeyError.
    if missing:
        yield f"{', '.join(missing)} of group {i} is missing"
        return
    if ours["depth"] != theirs["depth"]:
        saved, own = theirs["depth"], ours["depth"]
        yield f"depth={saved!r} was saved, depth={own!r} is set in group {i}"
    for key in ("lr", "strength", "freeze", "momentum", "taken", "shrunk"):
        value = theirs.get(key, 0.0)
        value = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        if not (is_number(value) and value >= -ROUNDING):
            yield f"in group {i} {key}={value!r} is not a finite number of at least 0"


def _control(control: Control | None, first: Saved) -> Iterator[str]:
    """The state of the controller of a target, which is kept in the first group."""
    state = first.get("control")
    if state is None:
        return
    # Without the controller the saved λ would be frozen where it was steered to.
    if control is None:
        yield (
            "the saved run was steered to a target; give this optimizer the same target_sparsity="
            " and steps="
        )
    elif (
        not isinstance(state, Mapping)
        or state.keys() != control.start().keys()
        or not all(map(is_number, state.values()))
    ):
        yield f"control={state!r} is not the state of a controller"


def _states(members: Members, saved: Saved) -> Iterator[str]:
    names = members.names()
    for ours, theirs in zip(members.groups, saved["param_groups"], strict=True):
        for parameter, index in zip(ours["params"], theirs["params"], strict=True):
            have, given = (
                members.state.get(parameter, {}),
                saved["state"].get(index, {}),
            )
            for key, value in given.items():
                if isinstance(value, Tensor) and not bool(local(value).isfinite().all()):
                    yield f"{key} of {names[parameter]!r} is not finite"
            for key, tensor in have.items():
                if (
                    isinstance(tensor, Tensor)
                    and getattr(given.get(key), "shape", None) != tensor.shape
                ):
                    yield f"{key} of {names[parameter]!r} is missing or has another shape"


def _of_another(members: Members, saved: Saved) -> Iterator[str]:
    """Factors that make up the weights of another parameter, since the order differed.

    Names show it at once; without them, a model that already has its weights still shows it.
    """
    names, products = members.names(), {}
    for ours, theirs in zip(members.groups, saved["param_groups"], strict=True):
        if ours.get("param_names") and theirs.get("param_names"):
            continue
        for parameter, index in zip(ours["params"], theirs["params"], strict=True):
            if ours["depth"] is not None and parameter in members.state:
                own, state = local(parameter), saved["state"][index]
                cut = {"factors": local_mask(state["factors"].to(own.device), parameter)}
                products[parameter] = layout(ours).weight(cut).to(own)
    moved = [
        f"{names[parameter]!r} are the weights of {names[other]!r}"
        for parameter, product in products.items()
        if not _equal(product, local(parameter))
        for other in products
        # Zeros, and biases that all start alike, prove nothing.
        if _equal(product, local(other)) and bool((product != product.flatten()[:1]).any())
    ]
    if moved:
        yield (
            f"the factors saved for {', those for '.join(moved)}: the saved optimizer had its"
            " parameters in another order. Give named_parameters() to both, or the parameters in"
            " that order"
        )


def _equal(product: Tensor, weight: Tensor) -> bool:
    """Whether these factors make up this weight, up to the rounding of a fresh start."""
    if product.shape != weight.shape or product.dtype != weight.dtype:
        return False
    slack = 16 * torch.finfo(weight.dtype).eps
    return torch.allclose(product, weight.detach(), rtol=slack, atol=0)


def _pairs(optimizer: Optimizer, saved: Mapping[str, Any]) -> Iterator[tuple[Tensor, int]]:
    """Every parameter with the number that stands for it in the saved state."""
    order = (index for group in saved["param_groups"] for index in group["params"])
    return zip(
        (p for group in optimizer.param_groups for p in group["params"]),
        order,
        strict=True,
    )
