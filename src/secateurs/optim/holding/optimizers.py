"""Which optimizers pass the hooks: those inside wrappers, those inside others, and those that do
not.
"""

import logging
from collections.abc import Callable

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from secateurs.errors import ArgumentError

_log = logging.getLogger("secateurs.optim")

BYPASSED = (
    "the update of this %s does not pass its step(), where hold works: %d dropped weights had come"
    " back by the second backward pass and were set to zero. Hold the optimizer that moves the"
    " weights (such as its base optimizer), or call held.enforce() after each update"
)


def unwrapped(optimizer: object) -> Optimizer:
    """The optimizer itself, out of accelerate's, Lightning's and similar wrappers."""
    seen: object = optimizer
    for _ in range(8):
        # accelerate's wrapper is an Optimizer by class but was never initialised as
        # one: hooks set on it would not run.
        if isinstance(seen, Optimizer) and "_optimizer_step_post_hooks" in vars(seen):
            return seen
        inner = getattr(seen, "optimizer", None)
        if inner is None or inner is seen:
            break
        seen = inner
    raise ArgumentError(
        "hold works through the hooks of a torch.optim.Optimizer, not"
        f" {type(optimizer).__name__}. Give the optimizer that moves the weights."
    )


def family(optimizer: Optimizer) -> list[Optimizer]:
    """The optimizer, and the one it lets do the update (`base_optimizer`, as SAM calls it)."""
    found = [optimizer]
    for _ in range(8):
        base = getattr(found[-1], "base_optimizer", None)
        # Some wrappers point back at themselves.
        if not isinstance(base, Optimizer) or any(base is other for other in found):
            break
        found.append(base)
    return found


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
