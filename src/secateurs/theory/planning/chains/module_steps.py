"""The steps of an `nn.Sequential` of torch's own modules."""

from collections.abc import Iterator
from copy import deepcopy

from torch import nn

from secateurs.theory.planning.chains.activations import lipschitz_constant
from secateurs.theory.planning.chains.steps import Layer, Obstacle, Passage, Step


def leaves_of(model: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules that a Sequential applies, nested ones opened; a module used twice comes
    twice.
    """
    if (
        not isinstance(model, nn.Sequential)
        or type(model).forward is not nn.Sequential.forward
    ):
        yield name, model
        return
    for key, child in model._modules.items():
        if child is not None:
            yield from leaves_of(child, f"{name}.{key}" if name else key)


def module_step(name: str, module: nn.Module) -> Step | Obstacle:
    """One of torch's own modules as a step, or the reason why it is none."""
    kind = type(module).__name__
    # A subclass that overrides forward is no linear map that is known.
    if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
        return Layer(name=name, weight=module.weight, bias=module.bias)
    if type(module) is nn.Conv2d:
        known = module.groups == 1 and module.padding_mode in ("zeros", "circular")
        padding = f"padding_mode = {module.padding_mode!r}"
        why = f"{kind} with groups = {module.groups}, {padding} ({name})"
        return (
            Layer(name=name, weight=module.weight, bias=module.bias, conv=module)
            if known
            else Obstacle(text=why)
        )
    constant = lipschitz_constant(module)
    if isinstance(constant, str):
        return Obstacle(text=f"{kind} that {constant} ({name or 'the model itself'})")
    # A copy in float64: biases and σ(0) pass through it, and the model stays as it is.
    return Passage(
        name=name, lipschitz=constant, apply=deepcopy(module).eval().double().cpu()
    )
