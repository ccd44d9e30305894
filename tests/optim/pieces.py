"""Models in pieces on several processes, by fully_shard and by tensor parallelism, and gradients
that do not depend on how a model is cut.
"""

import os
import traceback

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ranks import run_ranks

needs_gloo = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="needs gloo"
)


def net(seed=0, dtype=torch.float32):
    """Rows that two do not divide, a single row, and more entries than a kernel takes at once."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(34, 36), nn.Tanh(), nn.Linear(36, 7), nn.Tanh(), nn.Linear(7, 1)
    ).to(dtype)


def by_fsdp(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def by_tensors(model):
    """Rows of the first weight, columns of the second; the last layer is whole on every process."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


KINDS = {"fsdp": by_fsdp, "tensors": by_tensors}


def whole(model):
    found = {name: p.detach() for name, p in model.named_parameters()}
    return {n: v.full_tensor() if hasattr(v, "full_tensor") else v for n, v in found.items()}


def give_gradients(model, step, broken=(), *, tied=False):
    """Draw the gradients of whole parameters, and give each process its pieces, at every third step
    as sums over processes that are yet to be made; `broken`: which have a NaN, in their first
    entry; `tied`: many are equal or zero, and none is left to be summed.
    """
    from torch.distributed.tensor import DTensor, Partial, distribute_tensor

    g = torch.Generator().manual_seed(step)
    for name, p in model.named_parameters():
        grad = torch.randn(p.shape, generator=g).mul(0.1).to(p.dtype)
        grad = grad.mul(10).round().div(10) if tied else grad
        if name in broken:
            grad.view(-1)[0] = torch.nan
        if hasattr(p, "placements") and step % 3 == 2 and not tied:
            grad = DTensor.from_local(grad / dist.get_world_size(), p.device_mesh, [Partial()])
        elif hasattr(p, "placements"):
            grad = distribute_tensor(grad, p.device_mesh, p.placements)
        p.grad = grad


def step_with(model, optimizer, begin, end, **options):
    for step in range(begin, end):
        give_gradients(model, step, **options)
        optimizer.step()


def _process(rank, folder, check, arguments):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        check(*arguments)
        said = "right"
    except BaseException:
        said = traceback.format_exc()
    with open(f"{folder}/{rank}.txt", "w", encoding="utf-8") as file:
        file.write(said)
    if said == "right":
        dist.barrier()
    os._exit(0)  # gloo aborts now and then where one process tears down first


def on_two_processes(folder, check, *arguments):
    """Call a function on two processes, and raise what either has raised."""
    run_ranks(_process, str(folder), check, arguments, ranks=2)
    for rank in (0, 1):
        said = (folder / f"{rank}.txt").read_text(encoding="utf-8")
        assert said == "right", said
