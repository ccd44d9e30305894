"""The order of a weight's dimensions, from the type of the module that holds it."""

from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from secateurs.prune.axes.order import Order

_USUAL = (
    nn.Linear,
    nn.Bilinear,
    nn.RNNBase,
    nn.RNNCellBase,
    nn.MultiheadAttention,
    _ConvNd,
)


_AS_IT_IS = True
"""The weight is kept as (outputs, inputs, *rest)."""


def by_type(owner: nn.Module, shape: tuple[int, ...]) -> Order | bool | None:
    # Vectors have no inputs.
    if len(shape) < 2:
        return _AS_IT_IS
    if isinstance(owner, _ConvTransposeNd):
        return _transposed(owner.groups, shape)
    if isinstance(owner, _USUAL):
        return _AS_IT_IS
    if isinstance(owner, nn.Embedding | nn.EmbeddingBag) or _is_conv1d(owner):
        # A row of an embedding belongs to one input (a token), its columns are the
        # outputs.
        return Order(view=shape, outs=(1,), ins=(0,))
    return None


def _transposed(groups: int, shape: tuple[int, ...]) -> Order:
    """(inputs, outputs per group, *kernel); the outputs of all groups are the outputs."""
    view = (groups, shape[0] // groups, *shape[1:])
    return Order(view=view, outs=(0, 2), ins=(1,))


def _is_conv1d(owner: nn.Module) -> bool:
    """GPT-2's linear layer keeps (inputs, outputs)."""
    kind = type(owner)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")
