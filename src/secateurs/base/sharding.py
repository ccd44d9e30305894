"""Tensors in pieces on several processes, as FSDP2 (`fully_shard`) makes them.

Such a parameter is a `DTensor`: it has the shape of the whole tensor, and each process keeps the
rows (or whatever the placement says) that are its own. A mask is cut the same way, so zeros are
held piece by piece, without any communication in a step.
"""

import inspect
import sys

from torch import Tensor, nn

_WHOLE = (Tensor, nn.Parameter)


def is_sharded(tensor: Tensor) -> bool:
    """Whether this process has only a piece of the tensor.

    >>> import torch
    >>> is_sharded(torch.zeros(2))
    False
    """
    # Every step asks this of every tensor.
    if type(tensor) in _WHOLE:
        return False
    # If nobody has imported the module, there is no such tensor; importing it would cost time.
    tensors = sys.modules.get("torch.distributed.tensor")
    kind = getattr(tensors, "DTensor", None)
    return kind is not None and isinstance(getattr(tensor, "data", tensor), kind)


def local(tensor: Tensor) -> Tensor:
    """The piece of a sharded tensor that this process holds, sharing its memory; any other tensor
    itself.
    """
    if not is_sharded(tensor):
        return tensor
    piece: Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]
    return piece


def local_mask(mask: Tensor, like: Tensor) -> Tensor:
    """The piece of a whole mask for the piece of the parameter that this process holds."""
    if not is_sharded(like):
        return mask
    from torch.distributed.tensor import distribute_tensor

    # Every process has the whole mask, so nothing needs to be sent. torch 2.6 lacks this option and
    # sends the pieces of rank 0, which makes this a collective call, as `hold` is anyway.
    knows = "src_data_rank" in inspect.signature(distribute_tensor).parameters
    options = {"src_data_rank": None} if knows else {}
    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    piece: Tensor = distribute_tensor(mask, mesh, placements, **options).to_local()
    return piece


def joined(piece: Tensor, like: Tensor) -> Tensor:
    """The piece as this process's part of a tensor that lies in pieces as `like` does; the piece
    itself where that one is whole.
    """
    if not is_sharded(like):
        return piece
    from torch.distributed.tensor import DTensor

    whole: Tensor = DTensor.from_local(
        piece,
        like.device_mesh,  # type: ignore[attr-defined]
        like.placements,  # type: ignore[attr-defined]
        shape=like.shape,
        stride=like.stride(),
    )
    return whole
