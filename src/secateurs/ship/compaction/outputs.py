"""A model seen through all of its outputs at once, so that nothing an output needs is taken for
dead."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from secateurs.errors import ShipError
from secateurs.graph.wrapper import Wrapper

_PREFIX = "inner."


class AllOutputs(Wrapper):
    """The model with its real-valued outputs laid side by side in one tensor, whatever structure it
    returns."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Σ of nothing: a row per sample with every number the model returns."""
        found = list(leaves(self.inner(*args, **kwargs)))
        if not found:
            raise ShipError(
                f"{type(self.inner).__name__} returns no real-valued tensor."
            )
        return (
            found[0]
            if len(found) == 1
            else torch.cat([_row(leaf) for leaf in found], dim=1)
        )


def leaves(out: Any) -> Iterator[Tensor]:
    """The real-valued tensors of a result, in order, each once."""
    if isinstance(out, Tensor):
        # Indices and flags that a model returns have no relative difference.
        if out.is_floating_point():
            yield out
        return
    items: Any = ()
    if isinstance(out, Mapping):
        items = out.values()
    elif is_dataclass(out) and not isinstance(out, type):
        items = [getattr(out, field.name) for field in fields(out)]
    elif isinstance(out, list | tuple):
        items = out
    for item in items:
        yield from leaves(item)


def own_name(name: str) -> str:
    """A tensor's or module's name in the model itself."""
    return "" if name == _PREFIX.rstrip(".") else name.removeprefix(_PREFIX)


def _row(leaf: Tensor) -> Tensor:
    return leaf.flatten(1) if leaf.ndim > 1 else leaf.reshape(-1, 1)
