"""Networks by name: `build("lenet-5", classes=10)`, and the table of what exists."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from secateurs.base.random import check_generator
from secateurs.base.registry import Registry, unknown
from secateurs.errors import ArgumentError

# Reproducible initialisation: every number comes from one generator, in the order of the model.

Rule = Callable[["nn.Linear | nn.Conv2d", "torch.Generator | None"], None]
RULES: Registry[Rule] = Registry("initialisation")


def initialise_(
    model: nn.Module,
    rule: str = "kaiming-normal",
    *,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Draw every linear and convolution weight anew and reset batch norm to the identity. Returns
    the model.

    "kaiming-normal": weights N(0, 2/fan-in), biases 0 (He et al. 2015), as in the
    pruning-at-initialisation papers. "torch": weights and biases uniform on ±1/√fan-in, as the
    layers' own constructors draw them.
    """
    check_generator(generator)
    draw = RULES[rule]
    with torch.no_grad():
        # In the order of the model: the same seed gives the same numbers, whatever was drawn
        # before.
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                draw(module, generator)
            elif isinstance(module, _BatchNorm):
                module.reset_parameters()  # ones, zeros and empty statistics: nothing is drawn
            # to_empty leaves memory uninitialised: a layer without a rule would start from garbage.
            elif any(True for _ in module.parameters(recurse=False)):
                raise ArgumentError(
                    f"cannot initialise {name!r}: there is no rule for {type(module).__name__}."
                )
    return model


@RULES.register("kaiming-normal")
def _kaiming_normal(module: nn.Linear | nn.Conv2d, generator: torch.Generator | None) -> None:
    # Fan-in, not fan-out: the forward pass keeps its scale, as He et al. derive it.
    module.weight.normal_(0.0, math.sqrt(2.0 / _fan_in(module.weight)), generator=generator)
    if module.bias is not None:
        module.bias.zero_()


@RULES.register("torch")
def _torch(module: nn.Linear | nn.Conv2d, generator: torch.Generator | None) -> None:
    bound = 1.0 / math.sqrt(_fan_in(module.weight))
    module.weight.uniform_(-bound, bound, generator=generator)
    if module.bias is not None:
        module.bias.uniform_(-bound, bound, generator=generator)


def _fan_in(weight: Tensor) -> int:
    return weight[0].numel()


Maker = TypeVar("Maker", bound=Callable[..., nn.Module])


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One network: how it is built, one line about it, and the images it was published for."""

    make: Callable[..., nn.Module]
    summary: str
    in_channels: int
    size: int
    smallest: int
    """The smallest image side that leaves at least one pixel at the end."""


MODELS: Registry[Architecture] = Registry("model")


def architecture(
    name: str,
    summary: str,
    *,
    in_channels: int = 3,
    size: int = 32,
    smallest: int = 1,
) -> Callable[[Maker], Maker]:
    """Decorator: register a function `(in_channels, classes, size, **options) -> Module` under
    `name`.
    """

    def decorate(make: Maker) -> Maker:
        MODELS.register(name)(
            Architecture(
                make=make,
                summary=summary,
                in_channels=in_channels,
                size=size,
                smallest=smallest,
            )
        )
        return make

    return decorate


def build(
    name: str,
    *,
    in_channels: int | None = None,
    classes: int = 10,
    size: int | None = None,
    init: str = "kaiming-normal",
    generator: torch.Generator | None = None,
    **options: object,
) -> nn.Module:
    """A freshly initialised network; the same generator state gives the same weights, bit for bit.

    Args:
        name: one of `MODELS`.
        in_channels: channels of the images; by default those of the data the network was published
            for.
        classes: number of outputs.
        size: side of the square images in pixels; by default that of the published data.
        init: "kaiming-normal" (weights N(0, 2/fan-in), biases zero) or "torch" (PyTorch's own
            uniform rule).
        generator: source of the numbers; by default PyTorch's global one.
        options: further options of the particular network, such as `hidden` for VGG or `width` for
            ResNet-20.

    >>> model = build("lenet-300-100", generator=torch.Generator().manual_seed(0))
    >>> sum(p.numel() for p in model.parameters())
    266610
    """
    model = skeleton(name, in_channels=in_channels, classes=classes, size=size, **options)
    return initialise_(model.to_empty(device="cpu"), init, generator=generator)


def skeleton(
    name: str,
    *,
    in_channels: int | None = None,
    classes: int = 10,
    size: int | None = None,
    **options: object,
) -> nn.Module:
    """The network without values, on the meta device: names and shapes only. It uses neither memory
    nor random numbers.
    """
    made = MODELS[name]
    channels, side = in_channels or made.in_channels, size or made.size
    _check(name, made, channels, classes, side, options)
    # On the meta device constructors draw nothing, so that building a model leaves
    # torch's generator where it was.
    with torch.device("meta"):
        return made.make(in_channels=channels, classes=classes, size=side, **options)


def _check(
    name: str,
    made: Architecture,
    channels: int,
    classes: int,
    side: int,
    options: dict[str, object],
) -> None:
    # Checked here, since torch would fail deep inside a constructor without naming them.
    numbers = {"in_channels": channels, "classes": classes, "size": side}
    for key, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise ArgumentError(f"{key}={value!r} of {name} is not a whole number.")
    if channels < 1 or classes < 1:
        raise ArgumentError(
            f"{name} needs at least one channel and one class, not {channels} and {classes}."
        )
    if side < made.smallest:
        raise ArgumentError(
            f"{name} cannot read {side}×{side} images: its pooling needs at least {made.smallest}"
            " pixels a side. Use lenet-300-100 for small images."
        )
    known = [
        key
        for key in signature(made.make).parameters
        if key not in {"in_channels", "classes", "size"}
    ]
    for key in options:
        if key not in known:
            # The options of all networks are known, too: num_classes= is meant to be classes=.
            every = ["classes", "in_channels", "size", "init", "generator"]
            raise ArgumentError(f"for {name}, {unknown('option', key, [*every, *known])}")
