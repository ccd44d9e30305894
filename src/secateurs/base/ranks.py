"""Numbers of every process that trains together with this one."""

import torch
import torch.distributed as dist
from torch import Tensor


def distributed() -> bool:
    """Whether this process trains together with others."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gather(values: Tensor, device: torch.device) -> list[list[int]]:
    """These numbers of every process; the device is that of its model."""
    values = values.to(_moves_from(device))
    gathered = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, values)
    return [ranked.tolist() for ranked in gathered]


def _moves_from(device: torch.device) -> torch.device:
    """Where a collective call takes tensors from: NCCL (alone, "cuda:nccl") moves them between GPUs
    only; every other backend, and pairs such as "cpu:gloo,cuda:nccl", take those of the CPU.
    """
    backend = str(dist.get_backend())
    return device if "nccl" in backend and "cpu:" not in backend else torch.device("cpu")
