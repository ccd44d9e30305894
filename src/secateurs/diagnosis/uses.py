"""Where a convolution runs: every map size its weight meets in one forward pass."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from secateurs.diagnosis.norms import Use
from secateurs.diagnosis.running import checked_output
from secateurs.parameters import owned


def uses_of(model: nn.Module, example: Tensor) -> dict[str, frozenset[Use]]:
    """By parameter name, every convolution with that weight and every map size it meets in one
    forward pass.
    """
    names = {id(parameter): name for name, parameter, _ in owned(model)}
    seen: dict[str, set[Use]] = {}

    def note(
        name: str, conv: _ConvNd
    ) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def see(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            # A transposed convolution is the adjoint of one on its own output's map.
            mapped = output if conv.transposed else inputs[0]
            size = tuple(mapped.shape[-len(conv.kernel_size) :])
            seen.setdefault(name, set()).add(Use(conv=conv, size=size))

        return see

    convs = [
        m for m in model.modules() if isinstance(m, _ConvNd) and id(m.weight) in names
    ]
    hooks = [
        conv.register_forward_hook(note(names[id(conv.weight)], conv))
        for conv in convs
    ]
    try:
        with torch.no_grad():
            checked_output(
                model,
                example,
                "the dense model",
                "example= is one input with a batch axis in front.",
            )
    finally:
        # Also when the forward pass fails: the user's model keeps no hook.
        for hook in hooks:
            hook.remove()
    return {name: frozenset(uses) for name, uses in seen.items()}
