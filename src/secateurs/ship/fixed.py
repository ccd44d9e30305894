"""Modules that compute with the weights they were made with, next to the original model."""

import copy
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, Self

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError


class Fixed(nn.Module):
    """A program made from a model, `plain`: anything that would change that model through it is
    refused.

    `plain` is a submodule, so torch's own ways to change a module would change the user's model and
    leave the program as it is.
    """

    plain: nn.Module
    what: ClassVar[str] = "a program"

    def train(self, mode: bool = True) -> Self:
        """Evaluation only: the program has no gradients."""
        if mode:
            self._refuse("trained", "train")
        return super().train(False)

    def load_state_dict(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: the program has the weights it was made with."""
        self._refuse("given other weights", "load them into")

    # Called by torch when this module is part of another one.
    def _load_from_state_dict(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("given other weights", "load them into")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """`.half()`, `.to(…)` and the like are accepted if nothing changes."""
        tensors = (*self.plain.parameters(), *self.plain.buffers())
        for dtype, device in {(t.dtype, t.device) for t in tensors}:
            before = torch.empty(0, dtype=dtype, device=device)
            after = fn(before)
            if (after.dtype, after.device) != (before.dtype, before.device):
                self._refuse(f"moved to {after.dtype} on {after.device}", "convert")
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy with its own model; the program is shared, since it never changes."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        for name, value in self.__dict__.items():
            # Hooks too: torch keeps them, like the modules, in dictionaries.
            own = isinstance(value, dict) and name != "_modules"
            twin.__dict__[name] = copy.copy(value) if own else value
        twin.__dict__["_modules"] = copy.deepcopy(self._modules, memo)
        return twin

    def _refuse(self, what: str, verb: str) -> NoReturn:
        raise ArgumentError(
            f"{self.what} cannot be {what}: it has the weights that its model had when it was made."
            f" {verb[0].upper()}{verb[1:]} that model, `.plain`, and make this anew from it."
        )
