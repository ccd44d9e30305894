"""What can be wrong with a parameter, or with a mask for it, in the same words everywhere.

Each function returns the second half of a sentence that begins with the parameter's name, or an
empty string where nothing is wrong. The callers collect these and raise once.
"""

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from secateurs.sharding import sharded


def without_values(tensor: Tensor) -> str:
    """Why a tensor holds no numbers yet; empty if it holds some.

    >>> without_values(torch.empty(2, device="meta"))
    'is on the meta device and has no values: load the weights first'
    """
    # Asked first: a lazy parameter raises for nearly everything else one asks of it.
    if is_lazy(tensor):
        return "is lazy and has no shape yet: run one forward pass first"
    if tensor.is_meta:
        return "is on the meta device and has no values: load the weights first"
    return ""


def not_real(tensor: Tensor) -> str:
    """Why a tensor cannot be used as real floating-point weights; empty if it can.

    >>> not_real(torch.tensor([1, 2]))
    'has integer values (torch.int64): real floating-point weights are needed'
    """
    if text := without_values(tensor):
        return text
    if sharded(tensor):
        return (
            "lies in pieces on several processes (fully_shard): work on the model before it is"
            " sharded, and give the masks to hold afterwards"
        )
    if tensor.is_complex():
        return f"is complex ({tensor.dtype}): real floating-point weights are needed"
    if not tensor.is_floating_point():
        return f"has integer values ({tensor.dtype}): real floating-point weights are needed"
    return unworkable(tensor)


def unworkable(tensor: Tensor) -> str:
    """Why entries cannot be worked on one by one where they are; empty if they can.

    >>> unworkable(torch.eye(2).to_sparse())
    'has the layout torch.sparse_coo: give it dense, by parameter.to_dense()'
    """
    if tensor.layout != torch.strided:
        return (
            f"has the layout {tensor.layout}: give it dense, by parameter.to_dense()"
        )
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        return (
            "was made in torch.inference_mode(), outside of which torch neither changes nor derives"
            " it: build the model outside, or copy its state_dict into one that was"
        )
    if tensor.is_floating_point() and tensor.dtype.itemsize == 1:
        # Formats to store numbers in: torch neither adds nor sorts their values.
        return (
            f"has values of {tensor.dtype}, which torch only stores: convert them first, such as by"
            " model.bfloat16()"
        )
    return ""


def mask_misfit(mask: object, shape: torch.Size | tuple[int, ...]) -> str:
    """Why a mask does not fit a parameter of this shape; empty if it does.

    >>> mask_misfit(torch.ones(2, 3), (2, 3))
    'has a mask of torch.float32 values, not of booleans (True = kept)'
    """
    if not isinstance(mask, Tensor):
        return f"has a mask that is a {type(mask).__name__}, not a tensor"
    # Floats are refused and not read as booleans: 0.3 would silently mean "kept".
    if mask.dtype != torch.bool:
        return f"has a mask of {mask.dtype} values, not of booleans (True = kept)"
    if mask.is_meta:
        return "has a mask on the meta device, which has no values"
    if mask.shape != torch.Size(shape):
        return f"has shape {tuple(shape)}, but its mask has shape {tuple(mask.shape)}"
    return ""


def all_finite(tensor: Tensor) -> bool:
    """Whether no entry is NaN or infinite: one pass that only adds, and a second where in doubt.

    >>> all_finite(torch.tensor([1.0, 2.0])), all_finite(torch.tensor([1.0, float("inf")]))
    (True, False)
    """
    tensor = tensor.detach()
    # ∞ − ∞ is NaN and NaN stays NaN, so a finite sum proves that all entries are finite. It may
    # overflow, though; `isfinite` writes four tensors of its size and takes ten times as long.
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())
