"""Holding zeros at zero, through the optimizer.

The model is not touched: no module is wrapped, hooked or renamed, so `state_dict`, `deepcopy`,
`torch.compile` and every export see a plain model. Two hooks of the optimizer do the work:

* before a step the gradients of dropped entries are set to zero (and again whenever a closure has
  been evaluated), so that optimizers which mix entries (LBFGS) or norms never see them;
* after it the weights, and every state tensor of the parameter's own shape (momentum, second
  moments, averages).

An optimizer that hands the update to another (`base_optimizer`, as SAM does) is held with that one;
then gradients are cleared as soon as they are there, so that its probe step leaves zeros alone too.
Where an update passes no `step()` at all, a watcher on one parameter says so at the second backward
pass; after the first real step it is gone.

State of other shapes is left alone: scalars such as step counts need no mask, and factored or
preconditioning matrices (Adafactor, Shampoo) have no entry per weight; with those optimizers
weights and gradients are exactly zero all the same.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from types import TracebackType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from secateurs.errors import MaskError
from secateurs.misfits import mask_misfit
from secateurs.optim.holding.keep import Keep, forget_mixed_history
from secateurs.optim.holding.optimizers import Watcher, family, unwrapped
from secateurs.optim.holding.ranks import check_ranks, distributed
from secateurs.parameters import Params, absent, check_model, fitted
from secateurs.registry import unknown

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

# DDP and AveragedModel, torch.compile, ema-pytorch.
_WRAPPERS = (
    "",
    "module.",
    "_orig_mod.",
    "ema_model.",
)


_log = logging.getLogger("secateurs.optim")

_ORPHANED = (
    "%r is another parameter now than when it was held (load_state_dict with assign=True?): its"
    " zeros are restored, but the optimizer trains the old one. Make the optimizer and the hold"
    " anew"
)


def hold(
    model: nn.Module, masks: Params, optimizer: Optimizer, *, same_on_ranks: bool = True
) -> "Held":
    """Keep the dropped entries exactly zero from now on: weights, gradients and optimizer state.

    Args:
        model: The model, plain or in `DistributedDataParallel`, `torch.compile` or `AveragedModel`.
            Its dropped weights are set to zero at once.
        masks: Boolean masks by parameter name, True = kept, as from `select`.
        optimizer: The optimizer that trains the masked parameters. A frozen one may be missing; it
            is held as soon as a group with it is added.
        same_on_ranks: In a distributed run, compare the masks of all ranks (a collective call:
            every rank must hold). False where ranks train different models.

    Returns:
        A `Held`; `release()` it, or use it as a context manager.

    Copies of the optimizer (`deepcopy`, unpickling) carry no hooks, as always in torch: hold them
    as well. A copy of the model made before the hold, such as an average of its weights, is cleared
    by `held.follow(copy)`.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    >>> held = hold(layer, {"weight": torch.tensor([[True, False]])}, optimizer)
    >>> for _ in range(3):
    ...     layer(torch.ones(4, 2)).sum().backward()
    ...     optimizer.step()
    >>> layer.weight[0, 1].item(), optimizer.state[layer.weight]["momentum_buffer"][0, 1].item()
    (0.0, 0.0)
    >>> held.release()
    """
    check_model(model)
    optimizer = unwrapped(optimizer)
    known = dict(model.named_parameters(remove_duplicate=False))
    _refuse_sharded(model, known)
    masks = fitted(masks, known, prefixes=prefixes())
    prefix = _prefix(model, masks)
    names = {name: prefix + name for name in masks}
    problems = _misfits(names, masks, known) or _unheld(names, known, optimizer)
    if same_on_ranks and distributed():
        check_ranks(model, masks, problems, prefix=prefix)
    if problems:
        raise MaskError(
            f"{len(problems)} problem(s), nothing is held: {'; '.join(problems)}."
        )
    return Held(
        {name: known[found] for name, found in names.items()},
        masks,
        optimizer,
        model,
        compare=same_on_ranks,
    )


class Held:
    """Masks held by an optimizer. Made by `hold`; a context manager that releases at its end."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        masks: Params,
        optimizer: Optimizer,
        model: nn.Module,
        *,
        compare: bool,
    ) -> None:
        self._parameters = dict(parameters)
        self._keeps = {
            name: Keep(masks[name], like=p) for name, p in parameters.items()
        }
        self._optimizers = family(optimizer)
        self._model, self._compare = model, compare
        self._followers: list[dict[str, nn.Parameter]] = []
        self._handles: list[RemovableHandle] = []
        for held in self._optimizers:
            self._handles += [
                held.register_step_pre_hook(self._before),
                held.register_step_post_hook(self._after),
                held.register_load_state_dict_post_hook(lambda _: self.enforce()),
            ]
        self._watcher = self._watch()
        self.enforce()

    @property
    def masks(self) -> dict[str, Tensor]:
        """The masks held, by parameter name, True = kept."""
        return {name: keep.mask() for name, keep in self._keeps.items()}

    @torch.no_grad()
    def enforce(self) -> None:
        """Set every dropped entry to zero now: weights, gradients, optimizer state and followed
        copies.

        Every step does this; call it after changing the weights yourself, as by
        `model.load_state_dict`. Parameters that were replaced, as by `assign=True`, are found
        again; the log says so where the optimizer still trains the old ones.
        """
        self._find_again()
        self._clear_gradients()
        self._clear()
        pairs = [(self._parameters[name], keep) for name, keep in self._keeps.items()]
        for optimizer in self._optimizers:
            forget_mixed_history(optimizer, pairs)
        for name, follower in product(self._keeps, self._followers):
            self._keeps[name].clear_(follower[name])

    def follow(self, copy: nn.Module) -> None:
        """Clear a copy of the model too, now and whenever the masks shrink.

        For averages of the weights (`AveragedModel`, a deepcopy updated by hand) that were made
        before the hold. Averages of exact zeros are exact zeros, so nothing is needed from then on.
        """
        prefix = _prefix(copy, self._keeps)
        names = {name: prefix + name for name in self._keeps}
        known = dict(copy.named_parameters(remove_duplicate=False))
        problems = _misfits(names, self.masks, known)
        if problems:
            raise MaskError(
                f"{type(copy).__name__} is no copy of the model held: {'; '.join(problems)}."
            )
        self._followers.append({name: known[found] for name, found in names.items()})
        self.enforce()

    def shrink(self, masks: Params) -> None:
        """Hold fewer entries: each new mask lies within the one held. On error nothing is
        changed.
        """
        masks = fitted(masks, self._keeps)
        problems = self._revived(masks)
        if self._compare and distributed():
            check_ranks(
                self._model, masks, problems, prefix=_prefix(self._model, self._keeps)
            )
        if problems:
            raise MaskError(
                f"masks only shrink while they are held; {'; '.join(problems)}. Release and hold"
                " anew."
            )
        self._keeps.update(
            {
                name: Keep(mask, like=self._parameters[name])
                for name, mask in masks.items()
            }
        )
        self.enforce()

    def release(self) -> None:
        """Stop holding. The zeros stay until the next step moves them."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._unwatch()

    def __enter__(self) -> "Held":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        kept, total = (
            sum(int(m.sum()) for m in self.masks.values()),
            sum(p.numel() for p in self._parameters.values()),
        )
        state = "" if self._handles else ", released"
        return f"Held({kept} of {total} entries kept in {len(self._keeps)} parameters{state})"

    def _before(
        self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        self._clear_gradients()
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._closed(args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._closed(kwargs["closure"])}
        return None

    def _closed(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure, leaving gradients that are zero where the weights are dropped."""

        def held_closure() -> Any:
            loss = closure()
            self._clear_gradients()
            return loss

        return held_closure

    @torch.no_grad()
    def _clear_gradients(self) -> None:
        for name, parameter in self._parameters.items():
            self._keeps[name].clear_gradient_(parameter)

    def _after(self, *_: object) -> None:
        self._unwatch()
        self._clear()

    @torch.no_grad()
    def _clear(self) -> None:
        for name, parameter in self._parameters.items():
            keep = self._keeps[name]
            keep.clear_(parameter)
            for optimizer in self._optimizers:
                keep.clear_state_(optimizer.state.get(parameter), parameter)

    def _find_again(self) -> None:
        """Parameters that the model has now where others were when it was held."""
        prefix = _prefix(self._model, self._keeps)
        now = dict(self._model.named_parameters(remove_duplicate=False))
        trained = _trained(self._optimizers)
        for name, parameter in self._parameters.items():
            new = now.get(prefix + name, parameter)
            if new is not parameter and new.shape == parameter.shape:
                self._parameters[name] = new
                self._keeps[name] = Keep(self._keeps[name].mask(), like=new)
                if id(new) not in trained:
                    _log.warning(_ORPHANED, name)

    def _watch(self) -> Watcher | None:
        """Look out for updates that bypass the hooks; clear gradients early beside a base."""
        trained = [
            p for p in self._parameters.values() if p.requires_grad and p.is_leaf
        ]
        if len(self._optimizers) > 1:
            by_id = {id(p): self._keeps[name] for name, p in self._parameters.items()}
            self._handles += [
                p.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    lambda q: by_id[id(q)].clear_gradient_(q)
                )
                for p in trained
            ]
            return None
        if not trained:
            return None
        kind = type(self._optimizers[0]).__name__
        return Watcher(trained[0], kind, self._alive, self.enforce)

    def _unwatch(self) -> None:
        if self._watcher is not None:
            self._watcher.remove()
            self._watcher = None

    def _alive(self) -> int:
        """Dropped entries that are not zero."""
        return sum(
            int(
                (parameter.detach().masked_fill(self._keeps[name].mask(), 0) != 0).sum()
            )
            for name, parameter in self._parameters.items()
        )

    def _revived(self, masks: Params) -> list[str]:
        strangers = [
            unknown("held parameter", name, self._keeps)
            for name in masks
            if name not in self._keeps
        ]
        if strangers:
            return strangers
        problems = _misfits({name: name for name in masks}, masks, self._parameters)
        if problems:
            return problems
        back = {
            name: int((mask & ~self._keeps[name].mask().to(mask.device)).sum())
            for name, mask in masks.items()
        }
        return [
            f"{name!r} would get {count} entries back"
            for name, count in back.items()
            if count
        ]


def _prefix(model: nn.Module, names: Iterable[str]) -> str:
    """What a wrapper has put in front of the names of the masks, if anything."""
    known = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    prefixes = (first + second for first, second in product(_WRAPPERS, _WRAPPERS))
    return next(
        (
            prefix
            for prefix in prefixes
            if all(prefix + name in known for name in names)
        ),
        "",
    )


def _misfits(
    names: Mapping[str, str], masks: Params, known: Mapping[str, Tensor]
) -> list[str]:
    problems = [absent(name, known) for name in names.values() if name not in known]
    for name, mask in masks.items():
        # A mask of an unknown parameter is compared with itself: only its kind can be wrong.
        like = known.get(names[name], mask)
        if problem := mask_misfit(mask, getattr(like, "shape", ())):
            problems.append(f"{name!r} {problem}")
    return problems or ([] if masks else ["there are no masks"])


def _unheld(
    names: Mapping[str, str], known: Mapping[str, nn.Parameter], optimizer: Optimizer
) -> list[str]:
    """Masked parameters that are trained, but not by this optimizer: nothing would hold their
    zeros.
    """
    trained = _trained(family(optimizer))
    return [
        f"{name!r} is not among the parameters of this {type(optimizer).__name__}: add it there, "
        "or leave its mask out and hold it with the optimizer that trains it"
        for name, found in names.items()
        if id(known[found]) not in trained and known[found].requires_grad
    ]


def _trained(optimizers: Iterable[Optimizer]) -> set[int]:
    """The parameters of optimizers, by id."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return {id(p) for group in groups for p in group["params"]}


def prefixes() -> list[str]:
    """What wrappers may have put in front of names."""
    return [first + second for first, second in product(_WRAPPERS, _WRAPPERS)]


def _refuse_sharded(model: nn.Module, known: Mapping[str, Tensor]) -> None:
    """Weights in pieces on several ranks have no entries to match a mask with."""
    kinds = {type(module).__name__ for module in model.modules()}
    pieces = [name for name, p in known.items() if type(p.data).__name__ == "DTensor"]
    if pieces or "FullyShardedDataParallel" in kinds:
        raise MaskError(
            f"{type(model).__name__} is sharded (FSDP), so no rank has whole weights to hold zeros"
            f" in{': ' + repr(pieces[0]) if pieces else ''}. Prune before sharding, and clear the"
            " zeros of each shard yourself after a step; DistributedDataParallel is supported."
        )
