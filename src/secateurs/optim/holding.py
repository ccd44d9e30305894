"""Keeping zeros at zero through any optimizer."""

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, product
from operator import getitem, is_
from typing import Any, TypeAlias, TypeGuard

import numpy
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from secateurs.base.parameters import Params, check_model, is_sharded, mask_misfit
from secateurs.base.registry import unknown
from secateurs.base.sharding import any_sharded, distributed, gather, local_mask, strange_placements
from secateurs.errors import ArgumentError, MaskError
from secateurs.masks.apply import absent, fit_masks, lost_norms
from secateurs.optim.keep import Clearing, Keep, clear_all_, forget_mixed_history, tensors_in

# Which optimizers pass the hooks: those inside wrappers, those inside others, and those that do
# not.

_log = logging.getLogger("secateurs.optim")

BYPASSED = (
    "the update of this %s does not go through its step(), where hold works: %d dropped weights "
    "had come back by the second backward pass and were set to zero. Hold the optimizer that "
    "moves the weights (such as its base optimizer), or call held.enforce() after each update"
)


_INSIDE = ("optimizer", "base_optimizer", "_base_optimizer")
"""Where wrappers keep the optimizer that they let do the update."""

_HOOKS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_load_state_dict_post_hooks",
)


def unwrap_optimizer(optimizer: object) -> Optimizer:
    """The optimizer itself, out of accelerate's, Lightning's and similar wrappers."""
    return layers(optimizer)[-1]


def layers(optimizer: object) -> tuple[*tuple[object, ...], Optimizer]:
    """The wrappers around an optimizer whose hooks run, from the outside, and that optimizer."""
    seen: list[object] = []
    inside: object = optimizer
    for _ in range(8):
        if _has_hooks(inside):
            return (*seen, inside)
        seen.append(inside)
        inside = _inside(inside)
        if inside is None or any(inside is other for other in seen):
            break
    raise ArgumentError(
        "hold works through the hooks of a torch.optim.Optimizer, not"
        f" {type(optimizer).__name__}. Give the optimizer that moves the weights."
    )


def _has_hooks(optimizer: object) -> TypeGuard[Optimizer]:
    """Whether hooks set on it would run.

    accelerate's wrapper, and many a Lookahead, are Optimizers by class but were never initialised
    as one: they lack some of the hooks, and their step calls none.
    """
    return (
        isinstance(optimizer, Optimizer)
        and all(name in vars(optimizer) for name in _HOOKS)
        and bool(getattr(type(optimizer).step, "hooked", False))
    )


def _inside(wrapper: object) -> object:
    found = (getattr(wrapper, name, None) for name in _INSIDE)
    return next((inner for inner in found if inner is not None), None)


def family(optimizer: Optimizer) -> list[Optimizer]:
    """The optimizer, and the one it lets do the update (`base_optimizer`, as SAM calls it)."""
    found = [optimizer]
    for _ in range(8):
        base = _inside(found[-1])
        # Some wrappers point back at themselves.
        if not _has_hooks(base) or any(base is other for other in found):
            break
        found.append(base)
    return found


def stray_copies(
    wrappers: Sequence[object], parameters: Iterable[Tensor], masks: Iterable[Tensor]
) -> list[str]:
    """Attributes of wrappers with copies of weights that no parameter is named for.

    A Lookahead with its slow weights in a list would bring dropped weights back, and nothing says
    which copy is whose. Copies that are zero where a mask of their shape drops are harmless.
    """
    own = {id(p) for p in parameters}
    dropped: dict[torch.Size, list[Tensor]] = {}
    for mask in masks:
        dropped.setdefault(mask.shape, []).append(~mask)
    return [
        f"{type(wrapper).__name__}.{name}"
        for wrapper in wrappers
        for name, value in vars(wrapper).items()
        if name not in (*_INSIDE, "param_groups", "state")
        and any(
            id(copy) not in own
            and copy.shape in dropped
            and all(bool(copy[out.to(copy.device)].any()) for out in dropped[copy.shape])
            for copy in tensors_in(value)
        )
    ]


class Watcher:
    """Looks, at the second backward pass, whether dropped weights came back without a step.

    One hook on one parameter. It is gone once a step has passed the optimizer's hooks, so it costs
    nothing in the usual loop.
    """

    def __init__(
        self,
        parameter: nn.Parameter,
        kind: str,
        alive: Callable[[], int],
        clear: Callable[[], None],
    ) -> None:
        self._kind, self._alive, self._clear = kind, alive, clear
        self._passes = 0
        register = parameter.register_post_accumulate_grad_hook
        self._handle: RemovableHandle | None = register(self._look)  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        """Stop looking."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _look(self, parameter: Tensor) -> None:
        # To look is to wait, which ends a capture.
        if parameter.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        self._passes += 1
        # The first pass comes before any update. At the second, weights that are back
        # were moved without a step, or gradients are being accumulated, and then none
        # is back.
        back = self._alive() if self._passes > 1 else 0
        if back:
            _log.warning(BYPASSED, self._kind, back)
            self._clear()
            self.remove()


# Under which names a model, perhaps wrapped, has the parameters of masks, and what stands in the
# way of holding them.

_WRAPPERS = ("", "module.", "_orig_mod.", "ema_model.")
"""DDP and AveragedModel, torch.compile, ema-pytorch; two of them may lie around each other."""


def prefix_of(model: nn.Module, names: Iterable[str]) -> str:
    """What a wrapper has put in front of the names of the masks, if anything."""
    known = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    fit = (p for p in prefixes() if all(p + name in known for name in names))
    # The empty prefix comes first, so a submodule that is really called "module" is not
    # unwrapped.
    return next(fit, "")


def misfits(names: Mapping[str, str], masks: Params, known: Mapping[str, Tensor]) -> list[str]:
    problems = [absent(name, known) for name in names.values() if name not in known]
    for name, mask in masks.items():
        # A mask of an unknown parameter is compared with itself: only its kind can be wrong.
        like = known.get(names[name], mask)
        if problem := mask_misfit(mask, getattr(like, "shape", ())) or strange_placements(like):
            problems.append(f"{name!r} {problem}")
    return problems or ([] if masks else ["there are no masks"])


def trained_elsewhere(
    names: Mapping[str, str], known: Mapping[str, nn.Parameter], optimizer: Optimizer
) -> list[str]:
    """Masked parameters that are trained, but not by this optimizer: nothing would hold their
    zeros.
    """
    trained = trained_by(family(optimizer))
    return [
        f"{name!r} is not among the parameters of this {type(optimizer).__name__}: add it there, "
        "or leave its mask out and hold it with the optimizer that trains it"
        for name, found in names.items()
        if id(known[found]) not in trained and known[found].requires_grad
    ]


def trained_by(optimizers: Iterable[Optimizer]) -> set[int]:
    """The parameters of optimizers, by id."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return {id(p) for group in groups for p in group["params"]}


def prefixes() -> list[str]:
    """What wrappers may have put in front of names."""
    return [first + second for first, second in product(_WRAPPERS, _WRAPPERS)]


# The same mask bits on every process of a distributed run, checked.


def check_ranks(
    model: nn.Module, masks: Params, problems: Sequence[str], *, prefix: str = ""
) -> None:
    """Compare a digest of every mask with those of all other ranks; raise the same `MaskError` on
    each rank.

    A collective call: every rank must make it, also one whose masks do not fit (it passes its
    `problems`), or the others would wait for it. `prefix` is what a wrapper put in front of the
    names of the masks.
    """
    names = [
        name.removeprefix(prefix) for name, _ in model.named_parameters(remove_duplicate=False)
    ]
    device = next(model.parameters()).device
    # First what every rank can send whatever has happened to it: the tensor gathered
    # next has as many entries as there are names, and differing lengths would hang or
    # crash the collective.
    status = gather(torch.tensor([len(names), len(problems)]), device)
    failed = [rank for rank, (_, count) in enumerate(status) if count]
    if problems or failed:
        own = "; ".join(problems) or f"the masks of rank {failed} do not fit; see the error there"
        raise MaskError(f"{own}. Nothing is held on any rank.")
    if len({count for count, _ in status}) > 1:
        raise MaskError(
            f"the models of the ranks have {[count for count, _ in status]} parameter names; hold"
            " needs the same model on every rank, or same_on_ranks=False where ranks train"
            " different models."
        )
    digests = gather(
        torch.tensor([_digest(masks.get(name)) for name in names], dtype=torch.int64),
        device,
    )
    _compare(names, digests)


def _compare(names: Sequence[str], digests: Sequence[Sequence[int]]) -> None:
    apart = [
        name
        for name, column in zip(names, zip(*digests, strict=True), strict=True)
        if len(set(column)) > 1
    ]
    if apart:
        raise MaskError(
            f"the masks of {', '.join(map(repr, apart))} are not the same on all {len(digests)}"
            " ranks. Draw them from generators with the same seed and from scores of the same"
            " batch, or broadcast them from rank 0."
        )


def _digest(mask: Tensor | None) -> int:
    """63 bits that stand for a mask; 0 for none."""
    if mask is None:
        return 0
    digest = hashlib.blake2b(f"{tuple(mask.shape)}".encode(), digest_size=8)
    digest.update(_pack(mask))
    # Shifted to fit a signed int64; the last bit is set, so that no mask looks like the
    # 0 of none.
    return (int.from_bytes(digest.digest(), "little") >> 1) | 1


def _pack(mask: Tensor) -> bytes:
    """Eight booleans to a byte: an eighth is left to travel and to hash."""
    flat = mask.detach().flatten()
    if flat.is_cpu:
        return numpy.packbits(flat.numpy(), bitorder="little").tobytes()
    bits = torch.cat([flat, flat.new_zeros(-flat.numel() % 8)]).view(-1, 8).to(torch.uint8)
    places = torch.arange(8, dtype=torch.uint8, device=flat.device)
    return (bits << places).sum(1, dtype=torch.uint8).cpu().numpy().tobytes()


# What `hold` returns: masks, the hooks that keep them, and the ways to end or tighten it.

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


_ORPHANED = (
    "%r is not the parameter that was held (load_state_dict with assign=True?): its zeros are "
    "restored, but the optimizer trains the old one. Make a new optimizer and call hold again"
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
        self._keeps = {name: Keep(masks[name], like=p) for name, p in parameters.items()}
        self.kept: dict[str, int] | None = None
        """How many entries each mask keeps; None where nobody has counted them."""
        self._optimizers, self._wrappers = family(optimizer), list(wrappers)
        self._model, self._compare = model, compare
        prefix = prefix_of(model, parameters)
        self._places = {name: (prefix + name).split(".") for name in parameters}
        self._reached = Reached(model, {}, {})
        self._followers: list[dict[str, nn.Parameter]] = []
        self._handles: list[RemovableHandle] = []
        self._parts: list[object] = []
        self._early, self._late = Clearing(), Clearing()
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
        clear_all_((keep, f[name]) for f in self._followers for name, keep in self._keeps.items())

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
                f"{type(copy).__name__} is not a copy of the model held: {'; '.join(problems)}."
            )
        self._followers.append({name: known[found] for name, found in names.items()})
        self.enforce()

    def shrink(self, masks: Params) -> None:
        """Hold fewer entries: each new mask lies within the one held. On error nothing is
        changed.
        """
        masks = fit_masks(masks, self._keeps)
        self._replace(masks, self._revived(masks))

    def change(self, masks: Params, *, kept: Mapping[str, int] | None = None) -> None:
        """Hold other entries. Those that come back begin at zero, with an optimizer state of zeros,
        since both were held there until now. On error nothing is changed.

        `kept`: how many entries each mask that is held then keeps, by their names, where that is
        known: then nothing waits for a GPU.
        """
        if kept is not None and (missing := sorted(self._keeps.keys() - kept.keys())):
            raise ArgumentError(
                f"kept= does not say how many entries of {', '.join(map(repr, missing))} are kept:"
                " give a number for every parameter held, or leave it out, and they are counted."
            )
        masks = fit_masks(masks, self._keeps)
        self._replace(masks, self._misfits(masks), kept)

    def _replace(
        self, masks: Params, problems: Sequence[str], kept: Mapping[str, int] | None = None
    ) -> None:
        # Before the error is raised: the other ranks wait in the same collective call.
        if self._compare and distributed():
            check_ranks(
                self._model,
                masks,
                problems,
                prefix=prefix_of(self._model, self._keeps),
            )
        if problems:
            raise MaskError(f"{'; '.join(problems)}. Nothing was changed.")
        like = {name: self._parameters[name] for name in masks}
        if kept is not None and not any(map(is_sharded, like.values())):
            full = [kept[name] == mask.numel() for name, mask in masks.items()]
        else:
            pieces = [local_mask(mask, like[name]).all() for name, mask in masks.items()]
            # One wait for all of them.
            full = torch.stack([piece.to(pieces[0].device) for piece in pieces]).tolist()
        self.kept = None if kept is None else dict(kept)
        for (name, mask), whole in zip(masks.items(), full, strict=True):
            self._keeps[name].take_(mask, like=like[name], drops=not whole)
        # A mask may drop something for the first time, or nothing any more.
        self._parts = []
        self.enforce()

    def release(self) -> None:
        """Stop holding. The zeros stay until the next step moves them."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._unwatch()

    def __enter__(self) -> "Held":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        kept, total = (
            sum(int(m.sum()) for m in self.masks.values()),
            sum(p.numel() for p in self._parameters.values()),
        )
        state = "" if self._handles else ", released"
        return f"Held({kept} of {total} entries kept in {len(self._keeps)} parameters{state})"

    def _before(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        self._find_again()
        if _moves_entries_alone(optimizer):
            return None
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
        self._early.clear_(self._gradients())

    def _gradients(self) -> list[tuple[Keep, Tensor]]:
        """What is to be cleared of the gradients; sparse ones are cleared here."""
        given = [
            (keep, gradient)
            for keep, parameter in zip(self._keeps.values(), self._parameters.values(), strict=True)
            if (gradient := parameter.grad) is not None and keep.drops
        ]
        strided = [gradient for _, gradient in given if gradient.layout is torch.strided]
        if len(strided) < len(given) or any_sharded([*self._parameters.values()]):
            pairs = zip(self._keeps.values(), self._parameters.values(), strict=True)
            return [found for keep, parameter in pairs for found in keep.gradient(parameter)]
        return given

    @torch.no_grad()
    def _after(self, optimizer: Optimizer, *_: object) -> None:
        self._unwatch()
        gradients = self._gradients() if _moves_entries_alone(optimizer) else ()
        # An optimizer that looks out for changed weights is told that these are ours.
        follow: Callable[[Callable[[], object]], None] | None
        if (follow := getattr(optimizer, "clear_held_", None)) is not None:
            follow(partial(self._clear, gradients))
        else:
            self._clear(gradients)

    def _clear(self, gradients: Sequence[tuple[Keep, Tensor]] = ()) -> Clearing:
        """Weights and states, and these gradients with them; returns what is another object where
        masks or tensors are others.
        """
        # Every step comes here, and hardly one finds other tensors than the step before.
        parameters, states = [*self._parameters.values()], [*self._states()]
        owned = [state.get(parameter) for state in states for parameter in parameters]
        inside = [own.values() if isinstance(own, dict) else (own,) for own in owned]
        parts: list[object] = [*parameters, *chain.from_iterable(inside)]
        if len(parts) != len(self._parts) or not all(map(is_, parts, self._parts)):
            cleared = list[tuple[Keep, Tensor]]()
            for name, parameter in self._parameters.items():
                keep = self._keeps[name]
                if keep.drops:
                    cleared.append((keep, parameter))
                    for state in states:
                        cleared += keep.state(state.get(parameter), parameter)
            self._late = Clearing(cleared)
            # What is inside of other things may change while they stay the same.
            plain = all(part is None or isinstance(part, Tensor) for part in parts)
            self._parts = parts if plain else []
        self._late.clear_(gradients)
        return self._late

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
        if self._reached.stands():
            return
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
            elif new.is_meta or is_sharded(new) != is_sharded(parameter):
                continue
            elif new.shape != parameter.shape:
                problems.append(
                    f"{name!r} has shape {tuple(new.shape)} now, but had {tuple(parameter.shape)} "
                    "when it was held"
                )
            else:
                replaced[name] = new
        if problems:
            raise MaskError(
                f"the model is not the one that was held: {'; '.join(problems)}. Release it and "
                "call hold again."
            )
        if replaced:
            self._take(replaced)
        self._reached = Reached(self._model, self._places, self._parameters)

    def _take(self, replaced: Mapping[str, nn.Parameter]) -> None:
        """Hold these in the place of those that were."""
        trained = trained_by(self._optimizers)
        orphaned = [
            name for name, new in replaced.items() if id(new) not in trained and new.requires_grad
        ]
        for name, new in replaced.items():
            self._parameters[name] = new
            self._keeps[name] = Keep(self._keeps[name].mask(), like=new)
        self._clean_early(replaced)
        for name in orphaned:
            _log.warning(_ORPHANED, name)

    def _watch(self) -> Watcher | None:
        """Look out for updates that bypass the hooks; clear gradients early beside a base."""
        trained = [p for p in self._parameters.values() if p.requires_grad and p.is_leaf]
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
            trained = parameter.requires_grad
            if not parameter.is_leaf or not (trained or _can_be_trained(parameter)):
                continue
            # A frozen one may be trained later, but torch takes hooks of trained ones alone.
            if not trained:
                parameter.requires_grad_(True)
            self._handles.append(
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    partial(_clear_gradient, self._keeps[name])
                )
            )
            if not trained:
                parameter.requires_grad_(False)

    def _unwatch(self) -> None:
        if self._watcher is not None:
            self._watcher.remove()
            self._watcher = None

    def _alive(self) -> int:
        """Dropped entries that are not zero."""
        return sum(self._keeps[name].alive(p) for name, p in self._parameters.items())

    def _misfits(self, masks: Params) -> list[str]:
        strangers = [
            unknown("held parameter", name, self._keeps).removesuffix(".")
            for name in masks
            if name not in self._keeps
        ]
        return strangers or misfits({name: name for name in masks}, masks, self._parameters)

    def _revived(self, masks: Params) -> list[str]:
        if problems := self._misfits(masks):
            return problems
        back = {
            name: int((mask & ~self._keeps[name].mask().to(mask.device)).sum())
            for name, mask in masks.items()
        }
        return [
            f"masks only shrink while they are held: {name!r} would get {count} entries back; "
            "release them and call hold again, or change() the masks"
            for name, count in back.items()
            if count
        ]


class Reached:
    """Through which modules parameters are reached, and whether that still holds."""

    def __init__(
        self,
        model: nn.Module,
        places: Mapping[str, Sequence[str]],
        parameters: Mapping[str, nn.Parameter],
    ) -> None:
        steps: dict[tuple[int, str], tuple[Any, str, object]] = {}
        for name, place in places.items():
            module = model
            for part in place[:-1]:
                inside = module._modules
                steps[id(inside), part] = inside, part, inside[part]
                module = inside[part]  # type: ignore[assignment]
            steps[id(module._parameters), place[-1]] = (
                module._parameters,
                place[-1],
                parameters[name],
            )
        found = [*steps.values()]
        self._homes = [home for home, *_ in found]
        self._names = [name for _, name, _ in found]
        self._found = [inside for *_, inside in found]

    def stands(self) -> bool:
        """Whether every module and parameter is where it was."""
        try:
            now = map(getitem, self._homes, self._names)
            return bool(self._found) and all(map(is_, now, self._found))
        # What TorchScript holds its modules in raises the latter.
        except (KeyError, RuntimeError):
            return False


def _at(model: nn.Module, place: Sequence[str]) -> nn.Parameter | None:
    """The parameter at a place such as ("layer1", "0", "weight")."""
    module: nn.Module | None = model
    for part in place[:-1]:
        # Not by get(): what TorchScript holds its modules and parameters in has none.
        if module is None or part not in module._modules:
            return None
        module = module._modules[part]
    held = None if module is None else module._parameters
    return held[place[-1]] if held is not None and place[-1] in held else None


_ENTRYWISE = frozenset(
    getattr(torch.optim, name)
    for name in (
        *("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop"),
        *("Rprop", "ASGD"),
    )
)
"""Optimizers of torch that move every entry by what they know of this entry."""


def _moves_entries_alone(optimizer: Optimizer) -> bool:
    """Whether a gradient of a dropped entry has a say in no other entry, so that it may be cleared
    after the step, together with the weights: in a small network every launch costs a step a
    percent. Other hooks may read it.
    """
    return type(optimizer) in _ENTRYWISE and len(optimizer._optimizer_step_pre_hooks) == 1


def _can_be_trained(parameter: Tensor) -> bool:
    """Whether torch lets it ask for a gradient, should it be frozen now."""
    return parameter.is_floating_point() and not parameter.is_inference()


def _clear_gradient(keep: Keep, parameter: Tensor) -> None:
    clear_all_(keep.gradient(parameter))


# Holding zeros at zero, through the optimizer.
#
# The model is not touched: no module is wrapped, hooked or renamed, so `state_dict`, `deepcopy`,
# `torch.compile` and every export see a plain model. Two hooks of the optimizer do the work:
#
# * before a step the gradients of dropped entries are set to zero (and again whenever a closure
#   has been evaluated), so that optimizers which mix entries (LBFGS) or norms never see them;
# * after it the weights, and every state tensor of the parameter's own shape (momentum, second
#   moments, averages).
#
# An optimizer of torch that moves every entry by itself, as most do, leaves no trace of a gradient
# elsewhere: where no other hook may read it, it is cleared after the step, with all others.
#
# An optimizer that hands the update to another (`base_optimizer`, as SAM does) is held with that
# one; then gradients are cleared as soon as they are there, so that its probe step leaves zeros
# alone too. Where an update passes no `step()` at all, a watcher on one parameter says so at the
# second backward pass; after the first real step it is gone.
#
# State of other shapes is left alone: scalars such as step counts need no mask, and factored or
# preconditioning matrices (Adafactor, Shampoo) have no entry per weight; with those optimizers
# weights and gradients are exactly zero all the same.

__all__ = ["Held", "hold"]


def hold(
    model: nn.Module,
    masks: Params,
    optimizer: Optimizer,
    *,
    same_on_ranks: bool = True,
) -> Held:
    """Keep the dropped entries exactly zero from now on: weights, gradients and optimizer state.

    Args:
        model: The model, plain or in `DistributedDataParallel`, `torch.compile` or `AveragedModel`,
            or sharded by `fully_shard` (then with whole masks, and with the optimizer of the
            sharded parameters). Its dropped weights are set to zero at once.
        masks: Boolean masks by parameter name, True = kept, as from `select`.
        optimizer: The optimizer that trains the masked parameters. A frozen one may be missing; it
            is held as soon as a group with it is added. Wrappers such as accelerate's or a
            Lookahead are seen through, and what they keep for a parameter is cleared, too.
        same_on_ranks: In a distributed run, compare the masks of all ranks (a collective call:
            every rank must hold). False where ranks train different models.

    Returns:
        A `Held`; `release()` it, or use it as a context manager.

    Every step looks whether the model still has the parameters that are held. Those that were
    replaced (`load_state_dict(assign=True)`, `layer.weight = …`) are held in their place, and the
    log says so where the optimizer trains the old ones; a parameter that is gone, or has another
    shape, is a MaskError. A layer that the model gets later needs a `hold` of its own, with the
    same optimizer, once its parameters are there.

    Copies of the optimizer (`deepcopy`, unpickling) carry no hooks, as always in torch: hold them
    as well. A copy of the model made before the hold, such as an average of its weights, is cleared
    by `held.follow(copy)`.

    >>> import torch
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
    *wrappers, inner = layers(optimizer)
    known = dict(model.named_parameters(remove_duplicate=False))
    masks = fit_masks(masks, known, prefixes=prefixes())
    prefix = prefix_of(model, masks)
    names = {name: prefix + name for name in masks}
    # `trained_elsewhere` looks parameters up by name, so it may only follow where all names are
    # known.
    problems = misfits(names, masks, known) or trained_elsewhere(names, known, inner)
    problems = problems or lost_norms(model, {names[name]: mask for name, mask in masks.items()})
    if not problems and (stray := stray_copies(wrappers, known.values(), masks.values())):
        problems = [
            f"{', '.join(stray)} keeps copies of the weights, and would bring dropped ones back:"
            " hold the optimizer inside first, and make the wrapper around it afterwards"
        ]
    # Called with the problems and before they are raised: a rank that leaves early
    # would let the others wait for ever.
    if same_on_ranks and distributed():
        check_ranks(model, masks, problems, prefix=prefix)
    if problems:
        raise MaskError(f"{len(problems)} problem(s), nothing is held: {'; '.join(problems)}.")
    return Held(
        {name: known[found] for name, found in names.items()},
        masks,
        inner,
        model,
        wrappers=wrappers,
        compare=same_on_ranks,
    )
