"""Networks whose layers were replaced by `torch.ao.quantization`.

Such a layer keeps its weights as integers, and rounds its input as it runs, by a step it takes from
the largest value of the whole batch. Its output for one input depends on the others and is not
piecewise linear, so no graph computes it. A graph can only speak of its weights.
"""

from torch import nn

from secateurs.errors import UnsupportedOperation
from secateurs.graph.ir import kind_of

_ROOMS = (
    "torch.ao.nn.quantized",
    "torch.nn.quantized",
    "torch.ao.nn.intrinsic.quant",
)


def quantized_layers(model: nn.Module) -> list[str]:
    """The names of the layers that compute on integers.

    >>> quantized_layers(nn.Sequential(nn.Linear(2, 2)))
    []
    """
    return [name for name, m in model.named_modules() if works_on_integers(m)]


def refuse_quantized(model: nn.Module) -> None:
    """Raise if the model has quantised layers; the message says what can be done instead."""
    names = quantized_layers(model)
    if names:
        shown = ", ".join(repr(name) for name in names[:4])
        raise UnsupportedOperation(
            f"{kind_of(model)} has {len(names)} quantised layer(s): {shown}. They"
            " round their inputs as they run, by a step taken from the whole batch, which no graph"
            " of real numbers does. Use secateurs.graph.dequantized(model) for what their weights"
            " changed, or sc.proof.statistical(dense, quantized, data=inputs) for what the model"
            " itself does on inputs."
        )


def works_on_integers(module: nn.Module) -> bool:
    """Whether this layer works on integers, judged by the module that defines its class."""
    kinds = type(module).__mro__
    # Packed parameters are the inside of a layer that is listed already.
    packed = type(module).__name__.endswith("PackedParams")
    return not packed and any(kind.__module__.startswith(_ROOMS) for kind in kinds)
