"""Which optimizers pass the hooks: those inside wrappers, those inside others, and those that do
not.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from secateurs.errors import ArgumentError
from secateurs.optim.holding.keep import tensors_in

_log = logging.getLogger("secateurs.optim")

BYPASSED = (
    "the update of this %s does not pass its step(), where hold works: %d dropped weights had come"
    " back by the second backward pass and were set to zero. Hold the optimizer that moves the"
    " weights (such as its base optimizer), or call held.enforce() after each update"
)


_INSIDE = ("optimizer", "base_optimizer", "_base_optimizer")
"""Where wrappers keep the optimizer that they let do the update."""

_HOOKS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_load_state_dict_post_hooks",
)


def unwrapped(optimizer: object) -> Optimizer:
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
            and all(
                bool(copy[out.to(copy.device)].any()) for out in dropped[copy.shape]
            )
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

    def _look(self, _: Tensor) -> None:
        self._passes += 1
        # The first pass comes before any update. At the second, weights that are back
        # were moved without a step, or gradients are being accumulated, and then none
        # is back.
        back = self._alive() if self._passes > 1 else 0
        if back:
            _log.warning(BYPASSED, self._kind, back)
            self._clear()
            self.remove()
