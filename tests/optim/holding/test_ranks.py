"""Zeros held in models sharded by `fully_shard`, on one process and on two, against the plain
model.
"""

import contextlib
import json
import os

import pytest
import torch
import torch.distributed as dist
from torch import nn

import secateurs as sc
from ranks import run_ranks
from secateurs.errors import ArgumentError, MaskError, SecateursError
from secateurs.optim import DGating, holding

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="needs gloo"
)


def net(hidden=7):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, hidden), nn.ReLU(), nn.Linear(hidden, 3))


def half(model):
    """Masks that drop about half of both weights, some whole rows among them."""
    drawn = torch.Generator().manual_seed(1)
    masks = {
        name: torch.rand(p.shape, generator=drawn) < 0.5
        for name, p in model.named_parameters()
        if p.ndim == 2
    }
    masks["0.weight"][:2] = False
    return masks


def sharded(model, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (size,))
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def over_tensors(model, size):
    """The rows that tensor parallelism has dealt out, cut again."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("rows", "tp"))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model[0], mesh=mesh["rows"])
    return fully_shard(model, mesh=mesh["rows"])


def train(model, optimizer, steps, start=0):
    for step in range(start, start + steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(8, 6)).square().sum().backward()
        optimizer.step()


def whole(model):
    """Every weight, gathered."""
    found = {}
    for name, parameter in model.named_parameters():
        value = parameter.detach()
        found[name] = value.full_tensor() if hasattr(value, "full_tensor") else value
    return found


def trained(model, make):
    """AdamW before the hold, with the hold, and after it was tightened."""
    optimizer = make(model.parameters())
    train(model, optimizer, 2)
    masks = half(net(model[0].out_features))
    held = sc.hold(model, masks, optimizer)
    train(model, optimizer, 3, start=2)
    smaller = masks["2.weight"].clone()
    smaller[:, 0] = False
    held.shrink({"2.weight": smaller})
    train(model, optimizer, 3, start=5)
    return held, optimizer


def compare(size, cut=sharded, hidden=7):
    """What a sharded model does, against the plain one that sees the same batches."""
    make = lambda parameters: torch.optim.AdamW(parameters, lr=0.05)  # noqa: E731
    model = cut(net(hidden), size)
    held, optimizer = trained(model, make)
    plain = net(hidden)
    theirs, _ = trained(plain, make)
    found, expected = whole(model), whole(plain)
    state = [optimizer.state[p]["exp_avg"].full_tensor() for p in model.parameters()]
    masks = held.masks
    said = {
        "same": all(torch.allclose(found[n], expected[n], atol=1e-6) for n in expected),
        "zeros": all(not found[n][~m].any() for n, m in masks.items()),
        "moves": all(bool(found[n][m].any()) for n, m in masks.items()),
        "masks": all(torch.equal(m, theirs.masks[n]) for n, m in masks.items()),
        "state": not state[0][~masks["0.weight"]].any(),
    }
    # An evaluation leaves whole weights in the modules of the root; the hold keeps its own.
    with torch.no_grad():
        model(torch.zeros(1, 6))
    held.enforce()
    model.reshard()
    said["after"] = all(not whole(model)[n][~m].any() for n, m in masks.items())
    held.release()
    said["errors"] = refused(model)
    return said


def refused(model):
    """What is said where whole weights are needed."""
    calls = {
        "score": lambda: sc.score(model, "magnitude"),
        "prune": lambda: sc.prune_(model, "snip", sparsity=0.5),
        "capture": lambda: sc.path_norm(model, torch.zeros(1, 6)),
        "certify": lambda: sc.certify(net(), model, around=torch.zeros(1, 6), radius=0.1),
        "report": lambda: sc.sparsity_report(model),
        "gates": lambda: DGating(
            model, torch.optim.SGD(model.parameters()), strength=1e-3, groups="channel"
        ),
        "misfit": lambda: sc.hold(
            model,
            {"0.weight": torch.ones(2) > 0},
            torch.optim.SGD(model.parameters()),
            same_on_ranks=False,
        ),
    }
    texts = {}
    for name, call in calls.items():
        try:
            call()
            texts[name] = ""
        except SecateursError as error:
            texts[name] = str(error)
    return texts


def check(said):
    errors = said.pop("errors")
    assert all(said.values()), said
    assert ", 6), but its mask has shape (2,)" in errors.pop("misfit")
    for name, text in errors.items():
        assert "fully_shard" in text, name


@contextlib.contextmanager
def process_group(folder):
    meet = f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=meet, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


# In torch 2.6 the sharded forward pass asks a processor's stream for an event it has not.
runs_here = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream(), "record_event"),
    reason="fully_shard of this torch does not run on a CPU",
)


@runs_here
def test_one_process(tmp_path):
    with process_group(tmp_path):
        check(compare(1))
        model = sharded(net(), 1)
        masks = half(net())
        sc.apply_(model, masks)
        assert all(not whole(model)[n][~m].any() for n, m in masks.items())
        with pytest.raises(MaskError, match="do not fit"):
            sc.apply_(model, {"0.weight": torch.ones(2) > 0})


def test_a_digest_tells_every_mask_from_another():
    masks = [torch.ones(0, dtype=torch.bool), torch.ones(2, 2, dtype=torch.bool)]
    for size in (4, 8, 9):
        for place in range(size):
            masks.append(torch.arange(size) != place)
        masks += [torch.ones(size, dtype=torch.bool), torch.zeros(size, dtype=torch.bool)]
    assert len({holding._digest(mask) for mask in (None, *masks)}) == len(masks) + 1
    strided = torch.rand(6, 5) < 0.5
    assert holding._digest(strided.T) == holding._digest(strided.T.contiguous())
    assert holding._pack(torch.arange(11) % 3 == 0) == bytes([0b01001001, 0b010])


def test_ranks_of_as_many_names_are_compared_mask_by_mask(monkeypatch):
    """What the other rank sends is played back, so that one process sees both."""
    model, masks = net(), half(net())
    monkeypatch.setattr(holding, "gather", lambda sent, device: [sent.tolist()] * 2)
    holding.check_ranks(model, masks, [])
    other = [[4, 0], [5, 0]]
    monkeypatch.setattr(holding, "gather", lambda sent, device: other)
    with pytest.raises(MaskError, match=r"\[4, 5\] parameter names"):
        holding.check_ranks(model, masks, [])


def test_flat_shards_are_refused_in_words(tmp_path):
    from torch.distributed.fsdp import FullyShardedDataParallel

    with process_group(tmp_path):
        model = FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        calls = [
            lambda: sc.hold(model, half(net()), optimizer),
            lambda: sc.prune_(model, "magnitude", sparsity=0.5),
            lambda: sc.score(model, "magnitude"),
            lambda: sc.sparsity_report(model),
            lambda: sc.apply_(model, half(net())),
            lambda: sc.path_norm(model, torch.zeros(1, 6)),
        ]
        for call in calls:
            with pytest.raises(ArgumentError, match="before it is wrapped"):
                call()


def _rank(rank, folder, *arguments):
    torch.set_num_threads(1)
    meet = f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=arguments[0])
    said = compare(*arguments)
    with open(f"{folder}/{rank}.json", "w", encoding="utf-8") as file:
        json.dump(said, file)
    dist.barrier()
    os._exit(0)  # gloo aborts now and then where one process tears down first


@runs_here
@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(2,), (4, over_tensors, 8)], ids=["two", "four"])
def test_processes(tmp_path, arguments):
    run_ranks(_rank, str(tmp_path), *arguments, ranks=arguments[0])
    for rank in range(arguments[0]):
        check(json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8")))


def test_in_a_distributed_wrapper_by_module_or_a_sentence(tmp_path):
    from torch.nn.parallel import DistributedDataParallel

    x = torch.zeros(1, 6)
    with process_group(tmp_path):
        model = net()
        wrapped = DistributedDataParallel(model)
        assert sc.path_norm(wrapped, x) == sc.path_norm(model, x)
        assert sc.certify(wrapped, net(), around=x, radius=0.1).bound == 0
        sc.files.save_sparse(wrapped, tmp_path / "s.safetensors")
        assert sc.files.load_sparse(tmp_path / "s.safetensors").keys() == set(model.state_dict())
        for call in (
            lambda: sc.score(wrapped, "magnitude"),
            lambda: sc.prune_(wrapped, "magnitude", sparsity=0.5),
            lambda: sc.compact(wrapped, x),
            lambda: sc.prune_channels_(wrapped, x, channels=0.5),
        ):
            with pytest.raises(ArgumentError, match="give model.module"):
                call()
