"""Modules of ours around a user's model, and how messages speak of what is inside."""

from dataclasses import replace

from torch import nn

from secateurs.graph.primitives import Place


class Wrapper(nn.Module):
    """A model inside of a module that nobody but this library knows."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        # A new module begins in training mode, which the model inside need not be in.
        self.training = inner.training


def kind_of(model: nn.Module) -> str:
    """The class of the user's own model.

    >>> kind_of(Wrapper(nn.Linear(1, 1)))
    'Linear'
    """
    return type(_own(model)).__name__


def own_name(name: str, model: nn.Module) -> str:
    """What a module or tensor of this model is called in the user's own.

    >>> own_name("inner.weight", Wrapper(nn.Linear(1, 1)))
    'weight'
    """
    while isinstance(model, Wrapper):
        name = "" if name == "inner" else name.removeprefix("inner.")
        model = model.inner
    return name


def own_place(place: Place, model: nn.Module) -> Place:
    """A place in the user's own model."""
    module = own_name(place.module, model)
    return replace(place, module=module, kind=place.kind if module else kind_of(model))


def _own(model: nn.Module) -> nn.Module:
    return _own(model.inner) if isinstance(model, Wrapper) else model
