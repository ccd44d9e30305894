"""A model in pieces on several processes is pruned as the whole one, bit for bit."""

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


def even(kind):
    """Layers that two by two processes divide."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if kind == "tied":
                parameter.copy_((4 * parameter).round() / 4)
    return model


def by_tensors(model, mesh):
    """Rows of the first weight, columns of the second; the last is whole on every process."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def over_rows_and_tensors(model):
    """On two by two processes; the last weight lies in pieces on the rows alone."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "tp"))
    return fully_shard(by_tensors(model, mesh["tp"]), mesh=mesh["rows"])


def twice(model):
    """Two groups of two processes, each with the whole model in pieces."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b")))


def compare_layouts():
    """Whatever is cut, and however often: as the whole model."""
    amounts = ({"density": 0.02}, {"sparsity": 0.6}, {"density": 0.75}, {"scope": {"*": 0.3}})
    for kind in ("tied", "drawn"):
        for layout in (over_rows_and_tensors, twice):
            for options in amounts:
                for masked in (False, True):
                    plain, model = even(kind), layout(even(kind))
                    g = torch.Generator().manual_seed(2)
                    within = {"2.weight": torch.rand(16, 12, generator=g) < 0.6} if masked else None
                    expected = sc.prune_(plain, "magnitude", within=within, **options)
                    found = sc.prune_(model, "magnitude", within=within, **options)
                    case = (kind, layout.__name__, options, masked)
                    assert equal(dict(found.masks), dict(expected.masks)), case
                    assert equal(whole(model), values(plain)), case
                    assert found.rounds == expected.rounds, case


def compare_tensors():
    """Columns of a weight, whose equal entries do not lie one after the other."""
    from torch.distributed.device_mesh import init_device_mesh

    where = ["0.weight", "2.weight"]
    for kind in ("tied", "drawn"):
        for density in (0.02, 0.13, 0.5, 0.9):
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            plain, model = even(kind), by_tensors(even(kind), mesh)
            expected = sc.prune_(plain, "magnitude", density=density, where=where)
            found = sc.prune_(model, "magnitude", density=density, where=where)
            assert equal(dict(found.masks), dict(expected.masks)), (kind, density)
    with pytest.raises(SecateursError, match=r"'4.weight' lies whole on every process.*where="):
        sc.prune_(by_tensors(even("drawn"), mesh), "magnitude", sparsity=0.5)


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
        if size == 4:
            compare_layouts()
        else:
            compare("drawn", "tied", "bfloat16")
            compare_tensors()
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
@pytest.mark.parametrize("ranks", [2, 4])
def test_several_processes(ranks, tmp_path):
    run_ranks(_rank, str(tmp_path), ranks, ranks=ranks)
    said = [(tmp_path / f"{rank}.txt").read_text() for rank in range(ranks)]
    assert said == ["right"] * ranks
