"""Pruning methods of one's own: the classes of `torch.nn.utils.prune`, with masks kept our way.

torch's classes compute masks and also rename the parameter. Only the masks are taken from them:
`apply` leaves the weight where it is. So a class written for torch works after the import line is
changed, and prunes the same entries.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.utils.prune as torch_prune
from torch import Tensor, nn

from secateurs.compat.kept import history, keep, mask_of, parameter_of, remove
from secateurs.compat.places import Place, allowed, check_shape
from secateurs.errors import ArgumentError


class BasePruningMethod(torch_prune.BasePruningMethod):
    """The base of a method of one's own: `PRUNING_TYPE` and `compute_mask(t, default_mask)`.

    The mask is computed from the entries (`"unstructured"`), the channels along `self.dim`
    (`"structured"`) or the whole tensor (`"global"`) that earlier pruning has left, as in torch.

    >>> class EveryOther(BasePruningMethod):
    ...     PRUNING_TYPE = "unstructured"
    ...
    ...     def compute_mask(self, t, default_mask):
    ...         mask = default_mask.clone()
    ...         mask.view(-1)[::2] = 0
    ...         return mask
    >>> layer = nn.Linear(3, 2)
    >>> method = EveryOther.apply(layer, "weight")
    >>> int((layer.weight == 0).sum()), [name for name, _ in layer.named_parameters()]
    (3, ['weight', 'bias'])
    """

    @classmethod
    def apply(
        cls,
        module: nn.Module,
        name: str,
        *args: Any,
        importance_scores: Tensor | None = None,
        **kwargs: Any,
    ) -> torch_prune.BasePruningMethod:
        """Prune `module.name` by this method, among what is left of it.

        Returns the method, or a `PruningContainer` of all that were applied.
        """
        method = cls(*args, **kwargs)
        method._tensor_name = name
        apply_(module, name, method, importance_scores)
        return recorded(module, name)

    def apply_mask(self, module: nn.Module) -> Tensor:
        """The weight with its mask; it has it already."""
        weight: Tensor = getattr(module, self._tensor_name)
        mask: Tensor = getattr(module, f"{self._tensor_name}_mask")
        return weight * mask.to(weight.dtype)

    def remove(self, module: nn.Module) -> None:
        """Make the pruning permanent."""
        remove(module, self._tensor_name)


class Identity(BasePruningMethod, torch_prune.Identity):
    """Prunes nothing, but leaves a mask."""


class L1Unstructured(BasePruningMethod, torch_prune.L1Unstructured):
    """The smallest |weights|; `amount` is a count, or a share of what is left."""


class RandomUnstructured(BasePruningMethod, torch_prune.RandomUnstructured):
    """Entries at random."""


class LnStructured(BasePruningMethod, torch_prune.LnStructured):
    """The channels along `dim` with the smallest Ln norm: `LnStructured(amount, n, dim)`."""


class RandomStructured(BasePruningMethod, torch_prune.RandomStructured):
    """Channels along `dim` at random."""


class CustomFromMask(BasePruningMethod, torch_prune.CustomFromMask):
    """What a mask of one's own says is 0."""


def apply_(
    module: nn.Module,
    name: str,
    method: torch_prune.BasePruningMethod,
    scores: Tensor | None,
) -> None:
    """Prune by this method, and write it into the history of the parameter."""
    weight = parameter_of(module, name).detach()
    if scores is not None:
        check_shape((module, name), scores)
    before = mask_of(module, name)
    ranked = weight if scores is None else scores.detach()
    ones = torch.ones_like(weight)
    mask = (
        # The first method sees the tensor as it is, as in torch: no entry is singled out yet.
        _computed(method, ranked, ones)
        if before is None
        else _among_the_left(method, ranked, before.clone())
    )
    keep(module, name, mask != 0, method=method)


def prune_together(
    places: list[Place],
    method: torch_prune.BasePruningMethod,
    importance: Mapping[Place, Tensor],
) -> None:
    """Prune all parameters by one method of one's own, as if they were one long vector."""
    kind = type(method).__name__
    if getattr(method, "PRUNING_TYPE", None) != "unstructured":
        raise ArgumentError(
            f"{kind} has PRUNING_TYPE={getattr(method, 'PRUNING_TYPE', None)!r}: only"
            " 'unstructured' methods can prune several parameters together."
        )
    scores = [
        importance.get(place, parameter_of(*place)).detach() for place in places
    ]
    for place, score in zip(places, scores, strict=True):
        check_shape(place, score)
    # One vector has one dtype and one device: those of the first parameter.
    first = parameter_of(*places[0])
    ranked = torch.cat([score.flatten().to(first) for score in scores])
    before = torch.cat([allowed(place).flatten() for place in places]).to(first)
    mask = _among_the_left(method, ranked, before)
    parts = torch.split(mask, [score.numel() for score in scores])
    for (module, name), part in zip(places, parts, strict=True):
        weight = parameter_of(module, name)
        kept = (part != 0).reshape(weight.shape).to(weight.device)
        keep(module, name, kept, method=method)


def recorded(module: nn.Module, name: str) -> torch_prune.BasePruningMethod:
    """The method that pruned this parameter, or a container of several."""
    methods = history(module, name)
    if len(methods) == 1:
        return methods[0]
    container = torch_prune.PruningContainer()
    container._tensor_name, container._pruning_methods = name, tuple(methods)
    return container


def _among_the_left(
    method: torch_prune.BasePruningMethod, ranked: Tensor, before: Tensor
) -> Tensor:
    """torch's own rule for which part of the tensor a method sees after another one."""
    container = torch_prune.PruningContainer()
    container._tensor_name = method._tensor_name = getattr(
        method, "_tensor_name", "weight"
    )
    container.add_pruning_method(method)
    return _computed(container, ranked, before)


def _computed(
    method: torch_prune.BasePruningMethod, ranked: Tensor, before: Tensor
) -> Tensor:
    mask = method.compute_mask(ranked, default_mask=before)  # type: ignore[no-untyped-call]
    if not isinstance(mask, Tensor) or mask.shape != ranked.shape:
        shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ArgumentError(
            f"compute_mask of {type(method).__name__} returned {shape}, not a mask of shape"
            f" {tuple(ranked.shape)}."
        )
    return mask
