"""A private copy of a model, and random number generators that are put back."""

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from secateurs.bits import multiplied_
from secateurs.errors import ScoreError
from secateurs.parameters import Params
from secateurs.scores.cut import followed, recut_


class Copy:
    """A deep copy without gradients: the chosen parameters require a gradient, the others do not.

    A copy, not aliases of the same storage, because a module may write to its weights as it runs
    (an embedding with `max_norm` does). It costs the memory of the weights once, and once more
    where rounds share one copy.
    """

    def __init__(self, model: nn.Module, chosen: Iterable[str]) -> None:
        self.model = private(model)
        known = dict(self.model.named_parameters(remove_duplicate=False))
        self.parameters = {name: known[name] for name in chosen}
        # First all off, then the chosen on: a frozen parameter that was chosen is
        # scored as well.
        for parameter in known.values():
            parameter.requires_grad_(False)
        for parameter in self.parameters.values():
            parameter.requires_grad_(True)
        self._whole: dict[str, Tensor] = {}
        # The masks that large parameters are cut by now.
        self._last: dict[str, Tensor] = {}

    def keep(self) -> None:
        """Remember the chosen parameters as they are now, for `cut` to start from."""
        self._whole = {
            name: parameter.detach().clone()
            for name, parameter in self.parameters.items()
        }
        self._last = {
            name: last
            for name, parameter in self.parameters.items()
            if (last := followed(parameter.detach(), self._whole[name])) is not None
        }

    def cut(self, masks: Params) -> None:
        """Set the entries masked out to zero, all others to what was kept."""
        for name, parameter in self.parameters.items():
            target = parameter.detach()
            whole, last = self._whole.get(name, target), self._last.get(name)
            if name not in masks:
                target.copy_(whole)
                if last is not None:
                    last.fill_(True)
            elif last is not None:
                recut_(target, whole, masks[name], last)
            else:
                multiplied_(target, whole, masks[name])


def private(model: nn.Module) -> nn.Module:
    """A deep copy that takes no gradients along and can copy tensors with a history."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        # A lazy parameter has no values to clone.
        if not is_lazy(parameter):
            # Handed to deepcopy as already copied, so that gradients in `.grad` are not
            # copied.
            memo[id(parameter)] = nn.Parameter(
                parameter.detach().clone(), requires_grad=False
            )
    for module in model.modules():
        for value in vars(module).values():
            # Such as the weight that weight_norm computes.
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise ScoreError(
            f"{type(model).__name__} cannot be copied ({error}), and a score runs on a copy so that"
            " the model stays as it is. Make it work with copy.deepcopy: remove locks, open files"
            " and computed tensors it holds."
        ) from error


@contextmanager
def seeded(model: nn.Module, generator: torch.Generator | None) -> Iterator[None]:
    """Put the global generators back afterwards; inside, what a model draws (dropout) follows the
    generator.
    """
    devices = sorted(
        # Only devices the model lives on: touching others would start them.
        {p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"}
    )
    with torch.random.fork_rng(devices=devices):
        if generator is not None:
            seed = int(
                # A seed drawn from the user's generator: rounds differ, and the whole
                # run can be repeated.
                torch.randint(2**62, (), generator=generator, device=generator.device)
            )
            torch.default_generator.manual_seed(seed)
            for index in devices:
                torch.cuda.default_generators[index].manual_seed(seed)
        yield
