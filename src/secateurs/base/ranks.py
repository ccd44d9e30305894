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


def add_(values: Tensor, group: "dist.ProcessGroup") -> None:
    """Add the values of every process of the group, in place."""
    moved = values.to(_moves_from(values.device, group))
    dist.all_reduce(moved, group=group)
    if moved is not values:
        values.copy_(moved)


def gather_before(values: Tensor, group: "dist.ProcessGroup") -> Tensor:
    """Of each value, the sum of all that come before it: the earlier ones of every process, and
    that one of the earlier processes.
    """
    moved = values.to(_moves_from(values.device, group))
    gathered = [torch.empty_like(moved) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, moved, group=group)
    # Value by value, and of each process by process.
    table = torch.stack(gathered, dim=1)
    sums = (table.flatten().cumsum(0) - table.flatten()).view(table.shape)
    return sums[:, dist.get_rank(group)].to(values.device)


def take_first_(values: Tensor, group: "dist.ProcessGroup") -> None:
    """The values of the first process of the group, in place."""
    moved = values.to(_moves_from(values.device, group))
    dist.broadcast(moved, dist.get_global_rank(group, 0), group=group)
    if moved is not values:
        values.copy_(moved)


def _moves_from(device: torch.device, group: "dist.ProcessGroup | None" = None) -> torch.device:
    """Where a collective call takes tensors from: NCCL (alone, "cuda:nccl") moves them between GPUs
    only; every other backend, and pairs such as "cpu:gloo,cuda:nccl", take those of the CPU.
    """
    backend = str(dist.get_backend(group))
    return device if "nccl" in backend and "cpu:" not in backend else torch.device("cpu")
