"""A network that `torch.ao.quantization` has changed, in float with its rounded weights."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from secateurs.errors import UnsupportedOperation
from secateurs.graph.capture import works_on_integers


def dequantized(model: nn.Module) -> nn.Module:
    """A copy that computes in float32 with the same rounded weights.

    It differs from the model in one thing: inputs of layers are not rounded. So a certificate
    against the copy covers the rounding of weights, all of it, and nothing else.

    >>> model = nn.Sequential(nn.Linear(4, 2))
    >>> quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    >>> float(dequantized(quantized)[0].weight.sub(model[0].weight).abs().max()) < 0.01
    True

    Raises:
        UnsupportedOperation: A quantised layer is neither linear nor a convolution.
    """
    # The model may itself be a single quantised layer.
    if works_on_integers(model):
        return _plain(model, "")
    copied = deepcopy(model)
    for name, layer in quantized_modules(copied):
        above, _, own = name.rpartition(".")
        setattr(copied.get_submodule(above), own, _plain(layer, name))
    return copied


def quantized_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The outermost quantised layers by name, without the modules they are made of."""
    found: list[tuple[str, nn.Module]] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer, _ in found)
        if works_on_integers(module) and not inside:
            found.append((name, module))
    return found


def _plain(layer: nn.Module, name: str) -> nn.Module:
    """The float layer with the same weights."""
    kind = type(layer).__name__
    if kind not in ("Linear", "Conv1d", "Conv2d", "Conv3d"):
        raise UnsupportedOperation(
            f"{name or 'the model'} is a quantised {kind}, which cannot be copied to float;"
            " only linear layers and convolutions can."
        )
    weight: Tensor = layer.weight().dequantize()  # type: ignore[operator]
    bias: Tensor | None = layer.bias()  # type: ignore[operator]
    # In the dtype the weights come in: nothing is rounded a second time.
    plain = _empty_float_layer(layer, kind, bias is not None).to(weight.dtype)
    with torch.no_grad():
        plain.weight.copy_(weight)  # type: ignore[operator]
        if bias is not None:
            plain.bias.copy_(bias)  # type: ignore[operator]
    return plain.train(layer.training)


def _empty_float_layer(layer: nn.Module, kind: str, bias: bool) -> nn.Module:
    own = vars(layer)
    if kind == "Linear":
        return nn.Linear(own["in_features"], own["out_features"], bias=bias)
    names = ("in_channels", "out_channels", "kernel_size", "stride", "padding")
    more = ("dilation", "groups", "padding_mode")
    made: nn.Module = getattr(nn, kind)(**{n: own[n] for n in names + more}, bias=bias)
    return made
