"""Reproducible initialisation: every number comes from one generator, in the model's own order."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from secateurs.errors import ArgumentError
from secateurs.random import check_generator
from secateurs.registry import Registry

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
        # In the order of the model: the same seed draws the same numbers, whatever else
        # was drawn before.
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                draw(module, generator)
            elif isinstance(module, _BatchNorm):
                module.reset_parameters()  # ones, zeros and empty statistics: nothing is drawn
            # to_empty leaves memory as it was found: a layer without a rule would start
            # from garbage.
            elif any(True for _ in module.parameters(recurse=False)):
                raise ArgumentError(
                    f"cannot initialise {name!r}: there is no rule for {type(module).__name__}."
                )
    return model


@RULES.register("kaiming-normal")
def _kaiming_normal(
    module: nn.Linear | nn.Conv2d, generator: torch.Generator | None
) -> None:
    # Fan-in, not fan-out: the forward pass keeps its scale, as He et al. derive it.
    module.weight.normal_(
        0.0, math.sqrt(2.0 / _fan_in(module.weight)), generator=generator
    )
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
