"""Models in pieces on several processes, by fully_shard and by tensor parallelism, and gradients
that do not depend on how a model is cut.
"""

import inspect
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


def by_both(model):
    """Over tensor parallelism: columns of the first weight are cut into rows; rows of the second,
    again into fewer, unevenly.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (-(-ranks // 2), min(ranks, 2)), mesh_dim_names=("rows", "tp"))
    parallelize_module(model, mesh["tp"], {"0": RowwiseParallel(), "2": ColwiseParallel()})
    fully_shard(model[0], mesh=mesh["rows"])
    return fully_shard(model, mesh=mesh["rows"])


KINDS = {"fsdp": by_fsdp, "tensors": by_tensors}
BOTH = {"both": by_both}


def whole(model):
    found = {name: p.detach() for name, p in model.named_parameters()}
    return {n: v.full_tensor() if hasattr(v, "full_tensor") else v for n, v in found.items()}


def dealt(values, parameter):
    """Whole values, in the pieces of the parameter."""
    from torch.distributed.tensor import distribute_tensor

    if not hasattr(parameter, "placements"):
        return values
    # Torch cannot send uneven pieces of pieces; every process has the whole. Torch 2.6 has no such
    # choice.
    knows = "src_data_rank" in inspect.signature(distribute_tensor).parameters
    options = {"src_data_rank": None} if knows and parameter.device_mesh.ndim > 1 else {}
    return distribute_tensor(values, parameter.device_mesh, parameter.placements, **options)


@torch.no_grad()
def put_weights(model, plain):
    """The weights of a whole model, into one in pieces."""
    for p, values in zip(model.parameters(), plain.parameters(), strict=True):
        p.copy_(dealt(values.detach(), p))


def give_gradients(model, step, broken=(), *, tied=False, summed=None):
    """Draw the gradients of whole parameters, and give each process its pieces, at every third step
    as sums over processes that are yet to be made; `broken`: which have a NaN, in their first
    entry; `tied`: many are equal or zero, and none is left to be summed; `summed`: which may be, of
    those that fully_shard does not sum itself.
    """
    from torch.distributed.tensor import DTensor, Partial

    g = torch.Generator().manual_seed(step)
    for name, p in model.named_parameters():
        grad = torch.randn(p.shape, generator=g).mul(0.1).to(p.dtype)
        grad = grad.mul(10).round().div(10) if tied else grad
        if name in broken:
            grad.view(-1)[0] = torch.nan
        mesh, sums = getattr(p, "device_mesh", None), step % 3 == 2 and not tied
        if mesh is not None and mesh.ndim == 1 and sums and (summed is None or name in summed):
            grad = DTensor.from_local(grad / mesh.size(), mesh, [Partial()])
        else:
            grad = dealt(grad, p)
        p.grad = grad


def step_with(model, optimizer, begin, end, **options):
    for step in range(begin, end):
        give_gradients(model, step, **options)
        optimizer.step()


def _process(rank, folder, ranks, check, arguments):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    meet = f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=ranks)
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


def on_processes(folder, check, *arguments, ranks=2):
    """Call a function on so many processes, and raise what any has raised."""
    run_ranks(_process, str(folder), ranks, check, arguments, ranks=ranks)
    for rank in range(ranks):
        said = (folder / f"{rank}.txt").read_text(encoding="utf-8")
        if "FSDP+TP sharding does not support uneven sharding" in said:
            pytest.skip("this torch cuts no uneven pieces twice")
        assert said == "right", said
