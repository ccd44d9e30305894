"""What `hold` returns: masks, the hooks that keep them, and the ways to end or tighten it."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from types import TracebackType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from secateurs.errors import MaskError
from secateurs.optim.holding.keep import Keep, forget_mixed_history
from secateurs.optim.holding.names import misfits, prefix_of, trained_by
from secateurs.optim.holding.optimizers import Watcher, family
from secateurs.optim.holding.ranks import check_ranks, distributed
from secateurs.parameters import Params, fitted
from secateurs.registry import unknown
from secateurs.sharding import sharded

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

_log = logging.getLogger("secateurs.optim")

_ORPHANED = (
    "%r is another parameter now than when it was held (load_state_dict with assign=True?): its"
    " zeros are restored, but the optimizer trains the old one. Make the optimizer and the hold"
    " anew"
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
        wrappers: Sequence[object] = (),
        compare: bool,
    ) -> None:
        self._parameters = dict(parameters)
        self._keeps = {
            name: Keep(masks[name], like=p) for name, p in parameters.items()
        }
        self._optimizers, self._wrappers = family(optimizer), list(wrappers)
        self._model, self._compare = model, compare
        prefix = prefix_of(model, parameters)
        self._places = {name: (prefix + name).split(".") for name in parameters}
        self._followers: list[dict[str, nn.Parameter]] = []
        self._handles: list[RemovableHandle] = []
        for held in self._optimizers:
            self._handles += [
                held.register_step_pre_hook(self._before),
                held.register_step_post_hook(self._after),
                # A loaded state may come from before the mask and would move weights
                # that are dropped.
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
        # First, so that the rest clears the parameters that the model has now.
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
        prefix = prefix_of(copy, self._keeps)
        names = {name: prefix + name for name in self._keeps}
        known = dict(copy.named_parameters(remove_duplicate=False))
        problems = misfits(names, self.masks, known)
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
        # Before the error is raised: the other ranks wait in the same collective call.
        if self._compare and distributed():
            check_ranks(
                self._model,
                masks,
                problems,
                prefix=prefix_of(self._model, self._keeps),
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
        self._find_again()
        self._clear_gradients()
        # torch passes the optimizer itself as the first of the arguments of the step.
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
            for state in self._states():
                keep.clear_state_(state.get(parameter), parameter)

    def _states(self) -> Iterable[Mapping[Tensor, Any]]:
        """Of the optimizers, and of wrappers that keep something for a parameter themselves."""
        found: list[object] = [o.state for o in self._optimizers]
        found += [getattr(wrapper, "state", None) for wrapper in self._wrappers]
        # Most wrappers show the state of the optimizer inside.
        return {id(s): s for s in found if isinstance(s, Mapping)}.values()

    def _find_again(self) -> None:
        """Parameters that the model has now where others were when it was held.

        Looked up where they are, not listed anew: every step does this.
        """
        replaced: dict[str, nn.Parameter] = {}
        problems = []
        for name, parameter in self._parameters.items():
            new = _at(self._model, self._places[name])
            if new is parameter:
                continue
            if new is None:
                problems.append(f"{name!r} is no longer in the model")
            # Weights that are elsewhere for a while (offloaded to the meta device), and those that
            # fully_shard shows whole between a forward and a backward pass, are not the
            # parameters that the optimizer moves.
            elif new.is_meta or sharded(new) != sharded(parameter):
                continue
            elif new.shape != parameter.shape:
                problems.append(
                    f"{name!r} has shape {tuple(new.shape)} now and {tuple(parameter.shape)} when"
                    " it was held"
                )
            else:
                replaced[name] = new
        if problems:
            raise MaskError(
                f"the model is another one than when it was held: {'; '.join(problems)}. Release,"
                " and hold anew."
            )
        if replaced:
            self._take(replaced)

    def _take(self, replaced: Mapping[str, nn.Parameter]) -> None:
        """Hold these in the place of those that were."""
        trained = trained_by(self._optimizers)
        orphaned = [
            name
            for name, new in replaced.items()
            if id(new) not in trained and new.requires_grad
        ]
        for name, new in replaced.items():
            self._parameters[name] = new
            self._keeps[name] = Keep(self._keeps[name].mask(), like=new)
        self._clean_early(replaced)
        for name in orphaned:
            _log.warning(_ORPHANED, name)

    def _watch(self) -> Watcher | None:
        """Look out for updates that bypass the hooks; clear gradients early beside a base."""
        trained = [
            p for p in self._parameters.values() if p.requires_grad and p.is_leaf
        ]
        if len(self._optimizers) > 1:
            self._clean_early(self._parameters)
            return None
        if not trained:
            return None
        kind = type(self._optimizers[0]).__name__
        # One parameter is enough to count backward passes.
        return Watcher(trained[0], kind, self._alive, self.enforce)

    def _clean_early(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Beside a base optimizer: the probe of SAM moves the weights before the hooks come, so the
        gradient must be clean as soon as it is there.
        """
        if len(self._optimizers) == 1:
            return
        for name, parameter in parameters.items():
            if parameter.requires_grad and parameter.is_leaf:
                self._handles.append(
                    parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                        partial(_clear_gradient, self._keeps[name])
                    )
                )

    def _unwatch(self) -> None:
        if self._watcher is not None:
            self._watcher.remove()
            self._watcher = None

    def _alive(self) -> int:
        """Dropped entries that are not zero."""
        return sum(self._keeps[name].alive(p) for name, p in self._parameters.items())

    def _revived(self, masks: Params) -> list[str]:
        strangers = [
            unknown("held parameter", name, self._keeps)
            for name in masks
            if name not in self._keeps
        ]
        if strangers:
            return strangers
        problems = misfits({name: name for name in masks}, masks, self._parameters)
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


def _at(model: nn.Module, place: Sequence[str]) -> nn.Parameter | None:
    """The parameter at a place such as ("layer1", "0", "weight")."""
    module: nn.Module | None = model
    for part in place[:-1]:
        module = module._modules.get(part) if module is not None else None
    return None if module is None else module._parameters.get(place[-1])


def _clear_gradient(keep: Keep, parameter: Tensor) -> None:
    keep.clear_gradient_(parameter)
