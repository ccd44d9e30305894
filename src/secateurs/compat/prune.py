"""The calls of `torch.nn.utils.prune`, on our own exact selection."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any, TypeAlias

import torch
import torch.nn.utils.prune as torch_prune
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod as TorchPruningMethod
from torch.nn.utils.prune import L1Unstructured as TorchL1Unstructured
from torch.nn.utils.prune import RandomUnstructured as TorchRandomUnstructured
from torch.nn.utils.prune import is_pruned as torch_is_pruned
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakTensorKeyDictionary

from secateurs.bits import clear_
from secateurs.errors import ArgumentError, MaskError, ParameterError
from secateurs.masks.topk import largest
from secateurs.registry import unknown

# Which parameters are kept zero, where their masks are, and the hooks that keep them.


class Marker:
    """Marks a parameter of the module that it hooks as pruned. It is copied with the module.

    Scripts search the hooks of a module for that of a tensor, and list its history; the marker has
    the two attributes that they read.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.methods: list[TorchPruningMethod] = []

    @property
    def _tensor_name(self) -> str:
        return self.name

    def __iter__(self) -> Iterator[TorchPruningMethod]:
        return iter(self.methods)

    def __len__(self) -> int:
        return len(self.methods)

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        # Only eager calls look: a weak dictionary cannot be part of a compiled graph.
        if torch.compiler.is_compiling():
            return
        parameter = getattr(module, self.name)
        # Another parameter than before: the module was copied, or its parameter
        # replaced.
        if parameter not in _enrolled:
            enrol(module, self.name, parameter)


_enrolled = WeakTensorKeyDictionary()
"""Parameter -> (weak reference to its module, name): where to find its mask, on whatever device
that is now.
"""


_hooked: list[Any] = []


def marker_of(module: nn.Module, name: str) -> Marker | None:
    hooks = module._forward_pre_hooks.values()
    found = (hook for hook in hooks if isinstance(hook, Marker) and hook.name == name)
    return next(found, None)


def enrol(module: nn.Module, name: str, parameter: Tensor) -> None:
    """Keep this parameter zero where its mask says so, from now on."""
    known = parameter in _enrolled
    # Weak on both sides: pruning must not keep a model alive that its owner has
    # dropped.
    _enrolled[parameter] = weakref.ref(module), name
    _clear_(parameter)
    # One hook for a parameter, however often it is pruned.
    if parameter.requires_grad and not known:
        self = weakref.ref(parameter)
        parameter.register_hook(  # type: ignore[no-untyped-call]
            lambda gradient: _mask_gradient(self(), gradient)
        )
    # One hook for all optimizers of the process, made with the first pruning.
    if not _hooked:
        _hooked.append(register_optimizer_step_post_hook(_after_step))


def forget(parameter: Tensor) -> None:
    """Stop keeping this parameter."""
    del _enrolled[parameter]


def owner_of(parameter: Tensor) -> tuple[nn.Module, str] | None:
    if parameter not in _enrolled:
        return None
    reference, name = _enrolled[parameter]
    module = reference()
    return None if module is None or marker_of(module, name) is None else (module, name)


def _mask_for(parameter: Tensor) -> Tensor | None:
    owner = owner_of(parameter)
    return None if owner is None else owner[0].get_buffer(f"{owner[1]}_mask").to(parameter.device)


def _mask_gradient(parameter: Tensor | None, gradient: Tensor) -> Tensor:
    mask = None if parameter is None else _mask_for(parameter)
    return gradient if mask is None else gradient.masked_fill(mask == 0, 0)


@torch.no_grad()
def _clear_(parameter: Tensor) -> None:
    mask = _mask_for(parameter)
    if mask is not None:
        clear_(parameter, mask != 0)


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter in _enrolled:
                _clear_(parameter)


# Zeros kept zero without knowing the optimizer: a buffer and a marker on the module, one hook for
# all optimizers.
#
# The marker is a forward pre-hook that computes nothing; it recognises a copied or replaced
# parameter and enrols it.


def parameter_of(module: nn.Module, name: str) -> nn.Parameter:
    """The parameter to prune; one that torch's own pruning has renamed, or that is missing, is
    refused."""
    if f"{name}_orig" in module._parameters:
        raise ArgumentError(
            f"{name!r} of {type(module).__name__} is pruned by torch.nn.utils.prune: call its"
            " remove() first."
        )
    parameter = module._parameters.get(name)
    if parameter is None:
        raise ParameterError(
            unknown(
                "parameter",
                name,
                [k for k, p in module._parameters.items() if p is not None],
            )
        )
    return parameter


def mask_of(module: nn.Module, name: str) -> Tensor | None:
    """The mask of an earlier pruning, through this module or through one that shares the
    parameter.
    """
    if marker_of(module, name) is not None:
        return module.get_buffer(f"{name}_mask")
    owner = owner_of(parameter_of(module, name))
    return None if owner is None else owner[0].get_buffer(f"{owner[1]}_mask")


def keep(
    module: nn.Module,
    name: str,
    mask: Tensor,
    *,
    method: TorchPruningMethod | None = None,
) -> nn.Module:
    """Prune: zero the weights, leave the mask on the module, keep the zeros from now on. Returns
    the module.
    """
    parameter = parameter_of(module, name)
    if (marker := marker_of(module, name)) is None:
        # Our buffer would silently replace an attribute that the model uses.
        if hasattr(module, f"{name}_mask"):
            raise ArgumentError(
                f"{type(module).__name__} has an attribute '{name}_mask' of its own: rename it."
            )
        marker = Marker(name)
        module.register_forward_pre_hook(marker)
    if method is not None:
        marker.methods.append(method)
    # A buffer moves with the module; not persistent, so that the keys of state_dict
    # stay as they were.
    module.register_buffer(f"{name}_mask", mask.to(parameter.dtype), persistent=False)
    enrol(module, name, parameter)
    return module


def remove(module: nn.Module, name: str) -> nn.Module:
    """Make the pruning permanent: the zeros stay in the weight, the mask and the marker go, nothing
    holds them.
    """
    if (marker := marker_of(module, name)) is None:
        raise ArgumentError(
            f"parameter {name!r} of {type(module).__name__} is not pruned, so there is nothing to"
            " remove."
        )
    hooks = module._forward_pre_hooks
    del hooks[next(key for key, hook in hooks.items() if hook is marker)]
    delattr(module, f"{name}_mask")
    owner = owner_of(parameter := getattr(module, name))
    if owner is not None and owner[0] is module:
        forget(parameter)
    return module


def is_pruned(module: nn.Module) -> bool:
    """Whether a parameter of the module, or of one below it, is pruned: through here or by torch
    itself.
    """
    markers = (hook for part in module.modules() for hook in part._forward_pre_hooks.values())
    return any(isinstance(hook, Marker) for hook in markers) or bool(torch_is_pruned(module))


def history(module: nn.Module, name: str) -> list[TorchPruningMethod]:
    """The methods that pruned this parameter through `BasePruningMethod.apply`, first to last."""
    marker = marker_of(module, name)
    return [] if marker is None else marker.methods


# Where a weight is: a module and the name of one of its parameters.

Place: TypeAlias = tuple[nn.Module, str]
"""A module and the name of one of its parameters."""


def remaining(place: Place) -> Tensor:
    """The entries that earlier pruning has left; all of them where there was none."""
    mask = mask_of(*place)
    if mask is None:
        return torch.ones_like(parameter_of(*place), dtype=torch.bool)
    return mask == 1


def unique_places(parameters: Iterable[Place]) -> list[Place]:
    """Every parameter under its first place."""
    places: dict[int, Place] = {}
    for module, name in parameters:
        # A tied weight counts once: listed under two names it would use up twice its
        # share of the amount.
        places.setdefault(id(parameter_of(module, name)), (module, name))
    if not places:
        raise ArgumentError("no parameters are given to prune.")
    return list(places.values())


def check_shape(place: Place, tensor: Tensor) -> None:
    """A mask or scores must have the shape of the parameter."""
    shape = tuple(parameter_of(*place).shape)
    if tuple(tensor.shape) != shape:
        raise MaskError(
            f"{place[1]!r} has shape {shape}, but what was given for it has {tuple(tensor.shape)}."
        )


# What torch's calls cut, by our own exact selection: the smallest, at random, whole channels.

Amount: TypeAlias = int | float
"""How much to prune of what is left: an int counts entries or channels, a float from 0 to 1 is a
fraction.
"""


def prune_smallest(places: list[Place], amount: Amount, importance: Mapping[Place, Tensor]) -> None:
    scores = {
        str(i): importance.get(place, parameter_of(*place)).detach()
        for i, place in enumerate(places)
    }
    for place, score in zip(places, scores.values(), strict=True):
        check_shape(place, score)
    known = {
        key: remaining(place)
        for key, place in zip(scores, places, strict=True)
        if mask_of(*place) is not None
    }
    room = sum(
        int(known[key].count_nonzero()) if key in known else score.numel()
        for key, score in scores.items()
    )
    masks = largest(scores, room - _count_to_prune(amount, room), within=known, absolute=True)
    for key, (module, name) in zip(scores, places, strict=True):
        # Not all masks twice at a time: they take an eighth of the memory.
        keep(module, name, masks.pop(key))


def prune_random(places: list[Place], amount: Amount) -> None:
    rooms = [remaining(place) for place in places]
    room = sum(int(mask.sum()) for mask in rooms)
    pruned = _count_to_prune(amount, room)
    first = parameter_of(*places[0])
    # Torch prunes the largest numbers drawn.
    lot = torch.rand(room, dtype=first.dtype, device=first.device)
    kept = largest({"": -lot}, room - pruned)[""]
    parts = torch.split(kept, [int(mask.sum()) for mask in rooms])
    for (module, name), mask, part in zip(places, rooms, parts, strict=True):
        # A clone, since the mask is read as an index while it is written.
        mask[mask.clone()] = part.to(mask.device)
        keep(module, name, mask)


def prune_channels(
    module: nn.Module,
    name: str,
    amount: Amount,
    dim: int,
    score: Callable[[Tensor], Tensor],
) -> nn.Module:
    left = remaining((module, name))
    if left.ndim < 2 or not -left.ndim <= dim < left.ndim:
        raise ArgumentError(
            f"{name!r} of shape {tuple(left.shape)} has no channels along dim={dim}."
        )
    # A channel of which anything is left counts as there, as in torch.
    channels = left.any(tuple(other for other in range(left.ndim) if other != dim % left.ndim))
    alive = channels.nonzero().flatten()
    pruned = _count_to_prune(amount, len(alive))
    if pruned:
        kept = largest({"": score(alive)}, len(alive) - pruned)[""]
        channels[alive] = kept.to(channels.device)
    shape = [1] * left.ndim
    shape[dim] = -1
    return keep(module, name, left & channels.reshape(shape))


def norms_of(channels: Tensor, n: float | str, dim: int) -> Tensor:
    others = [other for other in range(channels.ndim) if other != dim % channels.ndim]
    # As torch computes them, to the last bit.
    norms: Tensor = torch.norm(channels, p=n, dim=others)
    return norms


def _count_to_prune(amount: Amount, room: int) -> int:
    """How many to prune of what is left, rounded as torch does."""
    if isinstance(amount, bool) or not isinstance(amount, Real):
        raise ArgumentError(f"amount={amount!r} is neither a number of entries nor a fraction.")
    # 1 is one entry and 1.0 is everything: the type decides, as in torch.
    limit = room if isinstance(amount, Integral) else 1
    if not 0 <= amount <= limit:
        raise ArgumentError(
            f"amount={amount!r} is not between 0 and {limit}: {room} are left to prune."
        )
    return int(amount) if isinstance(amount, Integral) else round(float(amount) * room)


# Pruning methods of your own: the classes of `torch.nn.utils.prune`, with masks kept our way.
#
# torch's classes compute masks and also rename the parameter. Only the masks are taken from them:
# `apply` leaves the weight where it is. So a class written for torch works after the import line
# is changed, and prunes the same entries.


class BasePruningMethod(torch_prune.BasePruningMethod):
    """The base of a method of your own: `PRUNING_TYPE` and `compute_mask(t, default_mask)`.

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
        return method_of(module, name)

    def apply_mask(self, module: nn.Module) -> Tensor:
        """The weight times its mask. Pruned entries are zero already, so it equals the weight."""
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
    """Prunes where a mask of your own is 0."""


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
        _compute_mask(method, ranked, ones)
        if before is None
        else _within_remaining(method, ranked, before.clone())
    )
    keep(module, name, mask != 0, method=method)


def prune_together(
    places: list[Place],
    method: torch_prune.BasePruningMethod,
    importance: Mapping[Place, Tensor],
) -> None:
    """Prune all parameters by one method of your own, as if they were one long vector."""
    kind = type(method).__name__
    if getattr(method, "PRUNING_TYPE", None) != "unstructured":
        raise ArgumentError(
            f"{kind} has PRUNING_TYPE={getattr(method, 'PRUNING_TYPE', None)!r}: only"
            " 'unstructured' methods can prune several parameters together."
        )
    scores = [importance.get(place, parameter_of(*place)).detach() for place in places]
    for place, score in zip(places, scores, strict=True):
        check_shape(place, score)
    # One vector has one dtype and one device: those of the first parameter.
    first = parameter_of(*places[0])
    ranked = torch.cat([score.flatten().to(first) for score in scores])
    before = torch.cat([remaining(place).flatten() for place in places]).to(first)
    mask = _within_remaining(method, ranked, before)
    parts = torch.split(mask, [score.numel() for score in scores])
    for (module, name), part in zip(places, parts, strict=True):
        weight = parameter_of(module, name)
        kept = (part != 0).reshape(weight.shape).to(weight.device)
        keep(module, name, kept, method=method)


def method_of(module: nn.Module, name: str) -> torch_prune.BasePruningMethod:
    """The method that pruned this parameter, or a container of several."""
    methods = history(module, name)
    if len(methods) == 1:
        return methods[0]
    container = torch_prune.PruningContainer()
    container._tensor_name, container._pruning_methods = name, tuple(methods)
    return container


def _within_remaining(
    method: torch_prune.BasePruningMethod, ranked: Tensor, before: Tensor
) -> Tensor:
    """torch's own rule for which part of the tensor a method sees after another one."""
    container = torch_prune.PruningContainer()
    container._tensor_name = method._tensor_name = getattr(method, "_tensor_name", "weight")
    container.add_pruning_method(method)
    return _compute_mask(container, ranked, before)


def _compute_mask(method: torch_prune.BasePruningMethod, ranked: Tensor, before: Tensor) -> Tensor:
    mask = method.compute_mask(ranked, default_mask=before)  # type: ignore[no-untyped-call]
    if not isinstance(mask, Tensor) or mask.shape != ranked.shape:
        shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ArgumentError(
            f"compute_mask of {type(method).__name__} returned {shape}, not a mask of shape"
            f" {tuple(ranked.shape)}."
        )
    return mask


def l1_unstructured(
    module: nn.Module,
    name: str,
    amount: Amount,
    importance_scores: Tensor | None = None,
) -> nn.Module:
    """Prune the entries with the smallest |weight|, or |score| when scores are given.

    >>> layer = l1_unstructured(nn.Linear(10, 4), "weight", amount=0.3)
    >>> int((layer.weight == 0).sum()), int(layer.weight_mask.sum())
    (12, 28)
    """
    scores = {} if importance_scores is None else {(module, name): importance_scores}
    prune_smallest([(module, name)], amount, scores)
    return module


def random_unstructured(module: nn.Module, name: str, amount: Amount) -> nn.Module:
    """Prune entries at random; the same ones as torch for the same state of torch's generator."""
    prune_random([(module, name)], amount)
    return module


def ln_structured(
    module: nn.Module,
    name: str,
    amount: Amount,
    n: float | str,
    dim: int,
    importance_scores: Tensor | None = None,
) -> nn.Module:
    """Prune the channels along `dim` with the smallest Ln norm of their weights, or of their
    scores.
    """
    scores = parameter_of(module, name).detach() if importance_scores is None else importance_scores
    check_shape((module, name), scores)
    return prune_channels(
        module,
        name,
        amount,
        dim,
        lambda alive: norms_of(scores.index_select(dim, alive), n, dim),
    )


def random_structured(module: nn.Module, name: str, amount: Amount, dim: int) -> nn.Module:
    """Prune channels along `dim` at random."""
    return prune_channels(module, name, amount, dim, lambda alive: torch.rand(len(alive)))


def global_unstructured(
    parameters: Iterable[Place],
    pruning_method: type[TorchPruningMethod],
    importance_scores: Mapping[Place, Tensor] | None = None,
    **kwargs: Any,
) -> None:
    """Prune all the parameters as if they were one, by `L1Unstructured`, `RandomUnstructured` or an
    unstructured method of your own; its options follow, such as amount=0.2.

    No parameter is copied or concatenated for L1: 96 M weights take megabytes beside their masks. A
    method of your own is given one long vector, as in torch.
    """
    places = unique_places(parameters)
    if not issubclass(pruning_method, TorchPruningMethod):
        raise ArgumentError(
            f"pruning_method={pruning_method.__name__} is not a BasePruningMethod: use"
            " L1Unstructured, RandomUnstructured or a class of your own with a compute_mask."
        )
    method: Any = pruning_method(**kwargs)
    # A subclass may rank the entries in another way, so only the plain methods take the fast path.
    own = type(method).compute_mask
    if own is TorchL1Unstructured.compute_mask:
        prune_smallest(places, method.amount, importance_scores or {})
    elif own is TorchRandomUnstructured.compute_mask:
        prune_random(places, method.amount)
    else:
        prune_together(places, method, importance_scores or {})


def custom_from_mask(module: nn.Module, name: str, mask: Tensor) -> nn.Module:
    """Prune what the mask says is 0, besides what is pruned already."""
    check_shape((module, name), mask)
    return keep(module, name, (mask != 0) & remaining((module, name)))


def identity(module: nn.Module, name: str) -> nn.Module:
    """Prune nothing, but leave a mask on the module."""
    return keep(module, name, remaining((module, name)))
