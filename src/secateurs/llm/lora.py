"""Sparse models with low-rank adapters of peft: masks under the names of the wrapped model,
training in which zeros of the base stay, and a merge that keeps them."""

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from secateurs.base.parameters import check_model
from secateurs.base.registry import unknown
from secateurs.errors import ArgumentError, MaskError, MissingExtra
from secateurs.masks import apply_

_PREFIX = "base_model.model."


def peft_masks(model: nn.Module, masks: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The masks of a base model under the names that its weights have where peft has wrapped it.

    Args:
        model: what `peft.get_peft_model` returned.
        masks: masks by the names of the base model (those of the wrapped one are taken as they
            are); without any, the zeros of the wrapped weights are the masks.

    Modules that peft trains as a whole (`modules_to_save`) are named by the copy it trains.
    """
    _refuse_unwrapped(model)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    names = _wrapped_names(model)
    if masks is None:
        return {
            name: parameter != 0
            for name in names.values()
            if (parameter := parameters[name]).ndim > 1 and not bool(parameter.all())
        }
    if absent := [name for name in masks if name not in names and name not in parameters]:
        raise MaskError(
            f"{type(model).__name__}: {unknown('parameter', absent[0], names)} Give masks of the "
            "base model, under its parameter names."
        )
    found = {names.get(name, name): mask for name, mask in masks.items()}
    for name, mask in found.items():
        if mask.shape != parameters[name].shape:
            raise MaskError(
                f"the mask of {name!r} has shape {list(mask.shape)} and the weight"
                f" {list(parameters[name].shape)}: give the masks of this base model."
            )
    return found


def hold_lora(model: nn.Module, masks: Mapping[str, Tensor] | None = None) -> "HeldLora":
    """Train adapters that leave the zeros of the base as they are.

    Frozen weights stay zero by themselves, but an adapter adds B·A, which has no zeros. From here
    on each adapter adds M ⊙ (B·A) instead, in training and in evaluation, so that `merge_lora`
    changes no output. Takes the memory of one weight for each layer, as a merged one does.

    Args:
        model: what `peft.get_peft_model` returned, with LoRA on linear layers or convolutions.
        masks: as for `peft_masks`.

    Returns a handle: `release()` ends it, as does leaving it as a context. Parts that peft trains
    whole (`modules_to_save`) are held by `secateurs.hold(model, peft_masks(...), optimizer)`.
    """
    held = peft_masks(model, masks)
    layers, problems = [], []
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for adapter, config in getattr(model, "peft_config", {}).items():
        # It takes what it begins with out of the base, whose zeros are lost.
        way = str(getattr(config, "init_lora_weights", ""))
        if way.lower().startswith(_MOVE_THE_BASE):
            problems.append(f"{adapter!r} begins as {way!r}, which fills the zeros of the base")
    for name, layer in model.named_modules():
        if problem := _problem_of_parameter(name, layer, held):
            problems.append(f"{name!r} {problem}")
            continue
        mask = held.get(f"{name}.base_layer.weight")
        if mask is None or bool(mask.all()):
            continue
        weight = parameters[f"{name}.base_layer.weight"]
        if bool(((weight != 0) & ~mask.to(weight.device)).any()):
            problems.append(f"{name!r} has a base whose zeros are gone")
            continue
        if problem := _problem(layer):
            problems.append(f"{name!r} {problem}")
        layers.append((layer, mask))
    if problems:
        raise ArgumentError(
            f"{len(problems)} adapter(s) cannot be held: {'; '.join(problems[:4])}. Leave these"
            " layers out of target_modules and target_parameters, begin adapters with"
            " init_lora_weights=True, or only merge with zeros: sc.llm.merge_lora."
        )
    return HeldLora([_Masked(layer, mask) for layer, mask in layers])


def merge_lora(model: nn.Module, masks: Mapping[str, Tensor] | None = None) -> nn.Module:
    """The base model with the adapters merged into its weights, and its zeros kept.

    As `merge_and_unload`, which fills the zeros, the wrapped model is used up. What adapters were
    not trained with (`hold_lora`) is cut off here and changes the outputs.

    Args:
        model: what `peft.get_peft_model` returned.
        masks: as for `peft_masks`.

    >>> from secateurs.llm.lora import merge_lora
    >>> # model = merge_lora(peft_model, pruned.masks)
    """
    held = peft_masks(model, masks)
    names = {wrapped: name for name, wrapped in _wrapped_names(model).items()}
    # A name of the wrapped model that the base has not (of an adapter) is not merged as it is.
    kept = {names[wrapped]: mask for wrapped, mask in held.items() if wrapped in names}
    base: nn.Module = model.merge_and_unload()  # type: ignore[operator, unused-ignore]
    apply_(base, kept)
    return base


class HeldLora:
    """Adapters that act only where the masks of the base keep weights, until `release`."""

    def __init__(self, layers: "list[_Masked]") -> None:
        self._handles = [handle for layer in layers for handle in layer.handles]

    def release(self) -> None:
        """The adapters act everywhere again."""
        while self._handles:
            self._handles.pop().remove()

    def __enter__(self) -> "HeldLora":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class _Masked:
    """One layer of peft: what goes into A is kept for a moment, and B gives what M ⊙ (B·A) makes
    of it."""

    def __init__(self, layer: Any, mask: Tensor) -> None:
        # Conv1D of GPT-2 keeps its weight as (inputs, outputs).
        self.mask = mask.T if getattr(layer, "fan_in_fan_out", False) else mask
        self.inputs: dict[str, Tensor] = {}
        self.handles: list[RemovableHandle] = []
        for adapter, down in layer.lora_A.items():
            up = layer.lora_B[adapter]
            self.handles += [
                down.register_forward_pre_hook(self._keep(adapter)),
                up.register_forward_hook(self._replace(adapter, down)),
            ]

    def _keep(self, adapter: str) -> Any:
        def keep(module: nn.Module, given: tuple[Tensor, ...]) -> None:
            self.inputs[adapter] = given[0]

        return keep

    def _replace(self, adapter: str, down: Any) -> Any:
        def replace(up: Any, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
            x = self.inputs.pop(adapter)
            self.mask = self.mask.to(x.device)
            product = up.weight.flatten(1) @ down.weight.flatten(1)
            if isinstance(down, nn.Linear):
                return F.linear(x, product * self.mask, up.bias)
            weight = product.reshape(self.mask.shape) * self.mask
            result: Tensor = down._conv_forward(x, weight, up.bias)
            return result

        return replace


_MOVE_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga", "loraga")
"""Beginnings of adapters that take what they begin with out of the base, which fills its zeros."""


def _problem_of_parameter(name: str, layer: Any, held: Mapping[str, Tensor]) -> str:
    """What keeps an adapter of one parameter from being held; empty for adapters of layers."""
    parameter = getattr(layer, "parameter_name", None)
    if not isinstance(parameter, str) or not getattr(layer, "lora_A", {}):
        return ""
    # An adapter of one parameter (target_parameters) adds to it before the layer runs.
    own = [
        mask
        for key, mask in held.items()
        if key.startswith(f"{name}.") and key.rpartition(".")[2] == parameter
    ]
    return "" if all(map(bool, (mask.all() for mask in own))) else "adapts a parameter itself"


def _problem(layer: Any) -> str:
    """Why the adapters of a layer cannot be masked as they run; empty where they can."""
    downs, ups = getattr(layer, "lora_A", {}), getattr(layer, "lora_B", {})
    if not downs:
        return f"({type(layer).__name__}) has no LoRA of two matrices"
    if any(getattr(layer, "use_dora", {}).values()):
        return "is trained with DoRA, which scales whole rows"
    for part in (*downs.values(), *ups.values()):
        plain = type(part) is nn.Linear or type(part) in (nn.Conv1d, nn.Conv2d, nn.Conv3d)
        if not plain or getattr(part, "groups", 1) > 1:
            return f"has an adapter of an unknown kind ({type(part).__name__}, or with groups)"
    return ""


def _wrapped_names(model: nn.Module) -> dict[str, str]:
    """From the name of a parameter in the base model to that in the wrapped one."""
    adapters = {str(name) for name in getattr(model, "active_adapters", ())}
    found: dict[str, str] = {}
    for name, _ in model.named_parameters(remove_duplicate=False):
        parts = name.removeprefix(_PREFIX).split(".")
        if "modules_to_save" in parts:
            place = parts.index("modules_to_save")
            # One copy for each adapter: the active one is what the model runs.
            if parts[place + 1] not in adapters:
                continue
            del parts[place : place + 2]
        elif "original_module" in parts or any(part.startswith("lora_") for part in parts):
            continue
        # Layers that peft wraps keep the user's own inside.
        found[".".join(part for part in parts if part != "base_layer")] = name
    return found


def _refuse_unwrapped(model: nn.Module) -> None:
    try:
        from peft import PeftModel
    except ImportError:
        raise MissingExtra.of("peft", extra="peft") from None
    check_model(model)
    if not isinstance(model, PeftModel):
        raise ArgumentError(
            f"a {type(model).__name__} is not wrapped by peft: give what peft.get_peft_model"
            " returned."
        )
