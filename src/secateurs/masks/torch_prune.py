"""Checkpoints of `torch.nn.utils.prune` (`weight_orig`, `weight_mask`) turned into masks and a
plain state dict.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateurs.base.parameters import aliases
from secateurs.errors import MaskError
from secateurs.masks.apply import check

_ORIG, _MASK = "_orig", "_mask"


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """`state` loads into the unpruned model; `masks` say which of its entries are kept."""

    masks: dict[str, Tensor]
    state: dict[str, Tensor]


def from_torch_prune(state: Mapping[str, Tensor], model: nn.Module | None = None) -> Imported:
    """Read a state dict saved while `torch.nn.utils.prune` was active: `name_orig` times
    `name_mask` is `name`.

    Args:
        state: the state dict (`torch.load(..., weights_only=True)` or safetensors); left as it is.
        model: the unpruned model; when given, names and shapes are checked, and a tied parameter's
            masks under several names are made one (they must agree).

    >>> pruned = {"weight_orig": torch.tensor([3.0, 4.0]), "weight_mask": torch.tensor([1.0, 0.0])}
    >>> from_torch_prune(pruned)
    Imported(masks={'weight': tensor([ True, False])}, state={'weight': tensor([3., 0.])})
    """
    _check_kind(state)
    own = set(model.state_dict()) if model is not None else set()
    names = [
        key.removesuffix(_ORIG)
        for key in state
        # A model may have a parameter of its own whose name has this ending.
        if key.endswith(_ORIG) and key not in own
    ]
    problems = [
        *_unpaired_entries(state, names, own),
        *(text for name in names if (text := _problem(name, state))),
    ]
    if problems:
        raise MaskError(
            f"{len(problems)} problem(s) with this pruned state dict: {'; '.join(problems)}."
        )
    if not names:
        raise MaskError(
            f"no mask among the {len(state)} entries of this state dict ({_some(state)}):"
            " torch.nn.utils.prune leaves 'name_orig' and 'name_mask'. After its remove() the"
            " zeros are in the weights themselves: masks are {name: weight != 0}."
        )
    masks = {name: state[name + _MASK] != 0 for name in names}
    gone = {name + ending for name in names for ending in (_ORIG, _MASK)}
    plain = {key: tensor for key, tensor in state.items() if key not in gone}
    plain |= {
        # Filled and not multiplied, since a pruned entry may be NaN or infinite.
        name: state[name + _ORIG].detach().masked_fill(~mask, 0)
        for name, mask in masks.items()
    }
    return Imported(masks=masks if model is None else _merge_tied(model, masks), state=plain)


def _check_kind(state: object) -> None:
    """A checkpoint often holds the state dict under a key of its own."""
    if isinstance(state, nn.Module):
        raise MaskError("this is a model: give its state_dict().")
    if not isinstance(state, Mapping):
        raise MaskError(f"this is a {type(state).__name__}, not a state dict.")
    inside = [key for key, value in state.items() if isinstance(value, Mapping)]
    if inside and not any(isinstance(value, Tensor) for value in state.values()):
        raise MaskError(
            f"this is a checkpoint with the entries {_some(state)}, not a state dict: give"
            f" checkpoint[{inside[0]!r}]."
        )
    strange = [key for key, value in state.items() if not isinstance(value, Tensor)]
    # torch allows anything as the extra state of a module.
    strange = [key for key in strange if not str(key).endswith("_extra_state")]
    if strange:
        raise MaskError(
            f"entry {strange[0]!r} is a {type(state[strange[0]]).__name__}, not a tensor: give the"
            " state dict of the model alone."
        )


def _some(state: Mapping[str, object]) -> str:
    listed = ", ".join(map(repr, list(state)[:6]))
    return listed + (", ..." if len(state) > 6 else "")


def _unpaired_entries(state: Mapping[str, Tensor], names: list[str], own: set[str]) -> list[str]:
    paired = {name + _MASK for name in names} | own
    alone = [key for key in state if key.endswith(_MASK) and key not in paired]
    return [f"{key!r} has no {key.removesuffix(_MASK) + _ORIG!r}" for key in alone]


def _problem(name: str, state: Mapping[str, Tensor]) -> str:
    original, mask = state[name + _ORIG], state.get(name + _MASK)
    if mask is None:
        return f"{name + _ORIG!r} has no {name + _MASK!r}"
    if name in state:
        return f"{name!r} is present both plain and pruned"
    if mask.shape != original.shape:
        return (
            f"{name + _MASK!r} has shape {tuple(mask.shape)}, {name + _ORIG!r}"
            f" {tuple(original.shape)}"
        )
    return (
        ""
        if bool(((mask == 0) | (mask == 1)).all())
        else f"{name + _MASK!r} has values other than 0 and 1"
    )


def _merge_tied(model: nn.Module, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Masks under the parameters' own names, checked against the model."""
    first, tied = aliases(model), dict[str, Tensor]()
    for name, mask in masks.items():
        known = tied.setdefault(first.get(name, name), mask)
        if not torch.equal(known, mask):
            raise MaskError(
                f"the masks of {name!r} and {first.get(name)!r} differ, but they are one parameter."
            )
    check(model, tied)
    return tied
