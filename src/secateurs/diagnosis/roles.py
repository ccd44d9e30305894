"""What a weight is to the theorems: a linear layer, a 2-D convolution, or no layer of a chain."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from secateurs.parameters import owned

Kind = Literal["linear", "convolution", "other"]

CIRCULAR = "circular padding that keeps the map, stride 1, one group"


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What a weight is in its network, and which statements that rules out.

    Attributes:
        misfits: What keeps a convolution out of Theorem 3 as stated.
        unseen: What a checkpoint does not tell.

    `explicit`: does its explicit form cover it?
    """

    kind: Kind
    what: str = ""
    misfits: tuple[str, ...] = ()
    explicit: bool = True
    unseen: str = ""


def module_roles(model: nn.Module) -> dict[str, Role]:
    """By parameter name, from the modules that hold them."""
    inside = {
        id(parameter): type(module).__name__
        for module in model.modules()
        # Their matrices look like linear layers and are none: they are used once per
        # step, or in parts.
        if isinstance(module, nn.RNNBase | nn.RNNCellBase | nn.MultiheadAttention)
        for parameter in module.parameters()
    }
    return {
        name: _module_role(inside.get(id(p)), owner)
        for name, p, owner in owned(model)
    }


def _module_role(inside: str | None, owner: nn.Module) -> Role:
    if inside is None and isinstance(owner, nn.Linear):
        return Role(kind="linear")
    if inside is None and isinstance(owner, nn.Conv2d):
        explicit = owner.groups == 1 and owner.padding_mode in ("zeros", "circular")
        return Role(
            kind="convolution", misfits=tuple(_conv_misfits(owner)), explicit=explicit
        )
    return Role(kind="other", what=inside or type(owner).__name__)


def _conv_misfits(conv: nn.Conv2d) -> Iterator[str]:
    """Against q×q circular convolutions of d channels onto d, on maps that keep their size."""
    if conv.padding_mode != "circular":
        yield f"its padding holds {conv.padding_mode}, not the map again (circular)"
    elif not _keeps_the_map(conv):
        yield f"its padding {conv.padding} does not keep the map"
    for name in ("stride", "dilation"):
        if set(getattr(conv, name)) != {1}:
            yield f"{name} = {getattr(conv, name)}"
    if conv.groups > 1:
        yield f"groups = {conv.groups}"
    yield from _shape_misfits(conv.out_channels, conv.in_channels, conv.kernel_size)


def _keeps_the_map(conv: nn.Conv2d) -> bool:
    reach = [
        d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)
    ]
    if isinstance(conv.padding, str):
        # "valid" pads nothing, which keeps the map only for kernels of one tap.
        return conv.padding == "same" or not any(reach)
    return [2 * p for p in conv.padding] == reach


def _shape_misfits(out: int, inside: int, kernel: tuple[int, ...]) -> Iterator[str]:
    if out != inside:
        yield f"{inside} channels onto {out}, not as many (only the first layer, never pruned, may)"
    if len(set(kernel)) > 1:
        yield f"a kernel of {'×'.join(map(str, kernel))}, not square"


_NOT_A_LAYER = re.compile(
    r"(^|\.)(weight_(ih|hh)(_l\d+)?(_reverse)?|in_proj_weight|[qkv]_proj_weight)$"
)
"""How torch names the matrices of recurrent and attention modules."""


def checkpoint_roles(weights: Mapping[str, Tensor]) -> dict[str, Role]:
    """By name and shape alone: matrices count as linear layers unless torch's names say
    otherwise.
    """
    return {
        name: _named_role(name, weight, weights) for name, weight in weights.items()
    }


def _named_role(name: str, weight: Tensor, weights: Mapping[str, Tensor]) -> Role:
    if (
        _NOT_A_LAYER.search(name)
        or f"{name.removesuffix('out_proj.weight')}in_proj_weight" in weights
    ):
        return Role(kind="other", what="recurrent or attention module, by its name")
    if weight.ndim == 2:
        return Role(kind="linear")
    if weight.ndim == 4:
        misfits = tuple(
            _shape_misfits(weight.shape[0], weight.shape[1], tuple(weight.shape[2:]))
        )
        return Role(kind="convolution", misfits=misfits, unseen=CIRCULAR)
    return Role(kind="other", what=f"tensor of {weight.ndim} dimensions")
