"""Weights that are computed of parameters whenever they are read: `weight_norm`, `spectral_norm`
and whatever else is registered with `torch.nn.utils.parametrize`.

The parameter behind such a weight says little about it: the direction that weight_norm keeps has no
length. What is ranked is the weight that acts. Both have their zeros at the same places, or the
parameter cannot be pruned.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList, type_before_parametrizations
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from secateurs.base.parameters import is_sharded


@dataclass(frozen=True, slots=True, kw_only=True)
class Parametrized:
    """A parameter of which a weight is computed.

    Attributes:
        name: What the weight that acts would be called without the parametrisation.
        weight: The weight that acts, with these values for the parameter. It draws nothing and
            changes nothing.
    """

    name: str
    weight: Callable[[Tensor], Tensor]


def parametrized_as(name: str, owner: nn.Module) -> Parametrized | None:
    """What is computed of the parameter that this module holds under the last part of its name;
    None where nothing is.
    """
    path, _, leaf = name.rpartition(".")
    if isinstance(owner, ParametrizationList):
        front, _, tensor = path.rpartition("parametrizations.")
        return Parametrized(
            name=front + tensor, weight=lambda values: _of_list(owner, leaf, values)
        )
    for hook in _hooks_of_old(owner).values():
        if leaf in _parts(hook):
            return Parametrized(
                name=f"{path}.{hook.name}" if path else hook.name,
                weight=lambda values, hook=hook: _of_hook(hook, owner, leaf, values),  # type: ignore[misc]
            )
    return None


def _hooks_of_old(module: nn.Module) -> "dict[int, WeightNorm | SpectralNorm]":
    """The hooks by which torch.nn.utils.weight_norm and spectral_norm compute weights."""
    hooks: Mapping[int, object] = module._forward_pre_hooks
    return {k: hook for k, hook in hooks.items() if isinstance(hook, WeightNorm | SpectralNorm)}


def _parts(hook: "WeightNorm | SpectralNorm") -> tuple[str, ...]:
    ends = ("g", "v") if isinstance(hook, WeightNorm) else ("orig",)
    return tuple(f"{hook.name}_{end}" for end in ends)


def _of_list(owner: ParametrizationList, leaf: str, values: Tensor) -> Tensor:
    # A copy in evaluation mode: spectral_norm would otherwise take a step of its power iteration.
    twin = copy.deepcopy(owner).eval()
    twin._parameters[leaf] = nn.Parameter(values, requires_grad=False)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        found: Tensor = twin().detach()
    return found


def _of_hook(
    hook: "WeightNorm | SpectralNorm", owner: nn.Module, leaf: str, values: Tensor
) -> Tensor:
    # They read attributes of a module; this one has no more than those.
    known: Any = SimpleNamespace(**{**owner._parameters, **owner._buffers, leaf: values})
    with torch.no_grad():
        if isinstance(hook, WeightNorm):
            found: Tensor = hook.compute_weight(known)
        else:
            found = hook.compute_weight(known, do_power_iteration=False)
    return found.detach()


def moves_zeros(name: str, owner: nn.Module, parameter: Tensor) -> str:
    """Why zeros of this parameter would be none of the weight of its shape that is computed of it;
    empty if they are, or if there is none.

    Found by trying: half of the entries are set to zero, and the weight is looked at.
    """
    made = parametrized_as(name, owner)
    if made is None:
        return ""
    source = torch.Generator().manual_seed(0)
    values = torch.randn(parameter.shape, generator=source).to(parameter)
    kept = (torch.rand(parameter.shape, generator=source) < 0.5).to(parameter.device)
    weight = made.weight(values * kept)
    # A norm that has lost all of its entries gives NaN: that says nothing.
    known = weight.isfinite()
    if weight.shape != parameter.shape or bool((((weight != 0) == kept) | ~known).all()):
        return ""
    return (
        f"is a part of which {made.name!r} is computed, and its zeros are no zeros of that weight"
    )


def acting_weights(model: nn.Module, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights that act, by the names of their parameters: computed where a parametrisation
    computes them, the parameters themselves elsewhere.

    >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 1))
    >>> name = "parametrizations.weight.original1"
    >>> found = acting_weights(layer, {name: layer.get_parameter(name)})
    >>> torch.equal(found[name], layer.weight)
    True
    """
    found = {}
    for name, parameter in parameters.items():
        values = parameter.detach()
        made = made_of(model, name)
        weight = values if made is None else made.weight(values)
        # Parts of other shapes, such as the norms of weight_norm, are parameters like any other.
        found[name] = weight if weight.shape == values.shape else values
    return found


def names_of_weights(model: nn.Module, parameters: Mapping[str, Tensor]) -> dict[str, str]:
    """By the names of their parameters, what the weights that are computed of them would be called
    as plain ones.
    """
    found = {}
    for name, parameter in parameters.items():
        made = made_of(model, name)
        if made is not None and made.weight(parameter.detach()).shape == parameter.shape:
            found[name] = made.name
    return found


def parts_of_weights(model: nn.Module, parameters: Mapping[str, Tensor]) -> str:
    """Why methods that rank or shrink parameters as they are cannot work on these; empty if they
    can.
    """
    for name, weight in names_of_weights(model, parameters).items():
        return (
            f"{name!r} is a part of which {weight!r} is computed, and its sizes say nothing of that"
            " weight: make it plain with torch.nn.utils.parametrize.remove_parametrizations"
            " (weight_norm of old: remove_weight_norm), or leave it out with where="
        )
    return ""


def made_of(model: nn.Module, name: str) -> Parametrized | None:
    """The weight that a parametrisation computes of this parameter, if it is part of one."""
    if isinstance(model, torch.jit.ScriptModule):  # holds no parametrisation, and names no parts
        return None
    return parametrized_as(name, model.get_submodule(name.rpartition(".")[0]))


def bake_(model: nn.Module, names: Iterable[str]) -> dict[str, nn.Parameter]:
    """Replace these parametrised weights by plain ones of the same values; those, by the names of
    their parameters. For copies alone: masks and optimizers would lose their place.
    """
    found = {}
    for name in names:
        made = made_of(model, name)
        if made is None:
            continue
        weight = made.weight(model.get_parameter(name).detach()).clone()
        path, _, leaf = made.name.rpartition(".")
        module = model.get_submodule(path)
        _remove_(module, leaf)
        module.register_parameter(leaf, nn.Parameter(weight))
        found[name] = module.get_parameter(leaf)
    return found


def _remove_(module: nn.Module, leaf: str) -> None:
    """Take one parametrisation away, by hand: torch's own functions would change the class, which
    copies share, or compute the weight in training mode.
    """
    for key, hook in _hooks_of_old(module).items():
        if hook.name == leaf:
            del module._forward_pre_hooks[key]
            for part in _parts(hook):
                del module._parameters[part]
            vars(module).pop(leaf, None)
            return
    plain = type_before_parametrizations(module)
    lists = module._modules.pop("parametrizations")
    module.__class__ = plain
    # All tensors of the module lose theirs with the class; the others become plain as they are.
    for other, made in lists.named_children():  # type: ignore[union-attr]
        if other != leaf:
            module.register_buffer(other, made.eval()().detach().clone())


def empty_norms(model: nn.Module, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Where the weights that act would be NaN under these masks, because nothing is left of a norm
    that they are divided by.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    found = {}
    for name, mask in masks.items():
        made = made_of(model, name) if name in named else None
        if made is None or is_sharded(named[name]):
            continue
        values = named[name].detach()
        lost = ~made.weight(values.masked_fill(~mask.to(values.device), 0)).isfinite()
        if lost.shape == mask.shape and bool(lost.any()):
            found[name] = lost
    return found


def revive_norms(
    model: nn.Module, masks: Mapping[str, Tensor], within: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The masks with the largest entry of every norm kept that would have lost all of its
    entries.
    """
    revived = dict(masks)
    # More than once only where all norms are empty, so that one looks like the whole.
    while lost := empty_norms(model, revived):
        for name, entries in lost.items():
            sizes = model.get_parameter(name).detach().abs()
            allowed = entries & (sizes > 0)
            if name in within:
                allowed &= within[name].to(sizes.device)
            chosen = _largest_of_each(sizes, entries, allowed).to(masks[name].device)
            if not bool((chosen & ~revived[name]).any()):
                return revived  # nothing to keep: the masks are refused when they are applied
            revived[name] = revived[name] | chosen
    return revived


def _largest_of_each(sizes: Tensor, lost: Tensor, allowed: Tensor) -> Tensor:
    """The largest allowed entry of each slice that is lost whole."""
    whole = bool(lost.all())
    fitting = (d for d in range(lost.ndim) if not whole and _is_made_of_slices(lost, d))
    dim = next(fitting, None)
    laid = torch.where(allowed, sizes.double(), -1.0)
    laid = laid[None] if dim is None else laid.movedim(dim, 0)
    rows = laid.flatten(1)
    best = torch.zeros_like(rows, dtype=torch.bool).scatter_(1, rows.argmax(1, keepdim=True), True)
    best = best.reshape(laid.shape)
    return (best[0] if dim is None else best.movedim(0, dim)) & allowed


def _is_made_of_slices(lost: Tensor, dim: int) -> bool:
    across = lost.movedim(dim, 0).flatten(1)
    return bool((across.all(1) == across.any(1)).all())
