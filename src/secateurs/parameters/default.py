"""The default rule: which parameters are weights, by their layers, their shapes and their names."""

import re

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy

_WEIGHTED = (
    nn.Linear,
    _ConvNd,
    nn.Bilinear,
    nn.RNNBase,
    nn.RNNCellBase,
    nn.MultiheadAttention,
)


_NEVER = (
    nn.Embedding,
    nn.EmbeddingBag,
    _NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


_TABLE = re.compile(
    r"(^|_)(pos|pe|rel|relative|alibi|positions?|positional|bias|tables?|tokens?)(_|$)"
    r"|pos_?(emb|enc)|embed",
    re.IGNORECASE,
)
"""Names of parameters that are looked up or added, not multiplied: positions, biases, tokens."""


_NORM = re.compile(r"norm|embed", re.IGNORECASE)
"""Names of classes whose own parameters are scales or tables (HF's `LlamaRMSNorm`, ...)."""


def default_skip(name: str, parameter: nn.Parameter, owner: nn.Module) -> str:
    """Why the default rule leaves a parameter out; empty if it takes it."""
    leaf = name.rpartition(".")[2]
    if isinstance(owner, _NEVER):
        return f"belongs to {type(owner).__name__}"
    # It is chosen, so that the error that it has no shape yet is raised and not passed
    # over.
    if is_lazy(parameter):
        return ""
    if parameter.ndim < 2:
        return "fewer than two dimensions"
    # weight_norm keeps lengths and directions apart: cutting a length would cut a whole
    # row.
    if leaf.endswith("_g") and f"{leaf[:-2]}_v" in owner._parameters:
        return "the norms of weight_norm"
    if re.search(r"(^|_)bias(_|$)", leaf):
        return "a bias by its name"
    # Known layers come before names: a subclass of Linear called NormedLinear has
    # weights.
    if isinstance(owner, _WEIGHTED):
        return ""
    if _NORM.search(type(owner).__name__):
        return f"belongs to {type(owner).__name__}"
    if _TABLE.search(leaf):
        return "a table of positions, biases or tokens by its name"
    # (1, n, 1) is a vector in disguise, such as the scale of a layer.
    wide = sum(size > 1 for size in parameter.shape)
    return "" if parameter.shape[0] > 1 and wide > 1 else "a single vector or token"
