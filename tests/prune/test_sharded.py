"""A model in pieces on two processes is pruned as the whole one, bit for bit."""

import os
import traceback

import pytest
import torch
import torch.distributed as dist
from torch import nn

import secateurs as sc
from masks.grid import equal
from ranks import run_ranks
from secateurs.errors import SecateursError

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="needs gloo"
)

CASES = {
    "global": {"sparsity": 0.9},
    "hardly any": {"density": 0.02},
    "nearly all": {"density": 0.88},
    "layer": {"sparsity": 0.7, "scope": "layer"},
    "uniform": {"compression": 5, "scope": "uniform"},
    "erk": {"sparsity": 0.8, "scope": "erk"},
    "densities": {"scope": {"0.weight": 0.3, "*": 0.5}},
    "floors": {"density": 0.08, "floor": 5},
    "vanishing": {"density": 0.02, "floor": 0},
    "some": {"sparsity": 0.5, "where": ["0.*", "4.*"]},
}


def net(kind):
    torch.manual_seed(0)
    # Rows that two do not divide, and a single one.
    model = nn.Sequential(
        nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 12), nn.Conv2d(3, 5, 3), nn.Linear(40, 1)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if kind == "tied":
                parameter.copy_((8 * parameter).round() / 8)
    return model.to(torch.bfloat16) if kind == "bfloat16" else model


def sharded(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def whole(model):
    return {name: p.detach().full_tensor() for name, p in model.named_parameters()}


def values(model):
    return {name: p.detach() for name, p in model.named_parameters()}


def compare(*kinds):
    for kind in kinds:
        for name, options in CASES.items():
            for masked in (False, True):
                plain, model = net(kind), sharded(net(kind))
                g = torch.Generator().manual_seed(2)
                within = {"2.weight": torch.rand(12, 7, generator=g) < 0.6} if masked else None
                if masked and "where" in options:
                    continue
                expected = sc.prune_(plain, "magnitude", within=within, **options)
                found = sc.prune_(model, "magnitude", within=within, **options)
                case = (kind, name, masked)
                assert equal(dict(found.masks), dict(expected.masks)), case
                assert equal(whole(model), values(plain)), case
                assert found.report.as_dict() == expected.report.as_dict(), case
                assert found.rounds == expected.rounds, case


def hold_what_was_cut():
    model = sharded(net("drawn"))
    pruned = sc.prune_(model, "magnitude", sparsity=0.8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sc.hold(model, pruned.masks, optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert all(not whole(model)[name][~mask].any() for name, mask in pruned.masks.items())


def refuse():
    model = sharded(net("drawn"))
    before = whole(model)
    for score, options, word in (
        ("snip", {"sparsity": 0.5}, "score='snip'"),
        ("magnitude", {"pattern": "2:4"}, "pattern='2:4'"),
        ("magnitude", {"sparsity": 0.5, "scope": "row"}, "scope='row'"),
        ("magnitude", {"sparsity": 0.5, "how": "sample"}, "how='sample'"),
        ("magnitude", {"sparsity": 0.5, "rounds": 2}, "rounds=2"),
        ("magnitude", {"sparsity": 0.5, "of": "left"}, "of='left'"),
    ):
        with pytest.raises(SecateursError, match="fully_shard") as error:
            sc.prune_(model, score, **options)
        assert word in str(error.value)
    assert equal(whole(model), before)
    with torch.no_grad():
        # On one process alone: all of them raise.
        if dist.get_rank() == 0:
            model[0].weight.to_local()[0, 1] = torch.nan
    with pytest.raises(SecateursError, match=r"'0.weight' \(1 entries\)"):
        sc.prune_(model, "magnitude", sparsity=0.5)


def _rank(rank, folder, size):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    try:
        compare("drawn", "tied", "bfloat16")
        hold_what_was_cut()
        refuse()
        said = "right"
    except BaseException:
        said = traceback.format_exc()
    with open(f"{folder}/{rank}.txt", "w") as file:
        file.write(said)
    dist.barrier()
    os._exit(0)  # gloo aborts now and then where one process tears down first


def test_one_process(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        compare("tied")
        refuse()
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes(tmp_path):
    run_ranks(_rank, str(tmp_path), 2, ranks=2)
    assert [(tmp_path / f"{rank}.txt").read_text() for rank in (0, 1)] == ["right"] * 2
