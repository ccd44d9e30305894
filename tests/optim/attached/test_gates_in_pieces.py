"""D-Gating of models in pieces: weights, gates and penalties of one process."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import secateurs as sc
from masks.grid import equal
from optim.attached_methods import OPTIMIZERS
from optim.holding.test_ranks import process_group
from optim.pieces import (
    BOTH,
    KINDS,
    dealt,
    give_gradients,
    needs_gloo,
    net,
    on_processes,
    step_with,
    whole,
)
from secateurs.errors import ArgumentError, SecateursError
from secateurs.optim import DGating, reparametrized
from secateurs.optim.groupings import grouping

pytestmark = needs_gloo

# By how the model is cut: the last weight is one row, of which the last process has nothing.
CASES = {
    "fsdp": {
        "sgd": {},
        "adamw": {"depth": 2},
        "nesterov": {"depth": 5, "start": "balanced"},
        "adam": {"groups": "block:2", "where": ["0.weight", "2.weight"]},
    },
    "tensors": {
        "sgd": {"where": ["0.weight", "4.weight"]},
        "adamw": {"groups": "block:6", "where": "2.weight"},
        "nesterov": {"groups": "channel", "where": ["2.weight", "4.weight"], "start": "balanced"},
    },
    "both": {
        "sgd": {"where": ["2.weight", "4.weight"]},
        "adamw": {"groups": "block:4", "where": "2.weight", "start": "balanced"},
    },
}


def started(kind, made, options, *, seed=0):
    model = net(seed)
    model = model if kind is None else (KINDS | BOTH)[kind](model)
    optimizer = OPTIMIZERS[made](model.parameters())
    return model, optimizer, DGating(model, optimizer, strength=0.02, **options)


def gathered(values):
    """Whole tensors, in nested dictionaries."""
    if isinstance(values, dict):
        return {key: gathered(value) for key, value in values.items()}
    return values.full_tensor() if hasattr(values, "full_tensor") else values


def same(one, other, atol=0.0):
    """Weights, the numbers behind them, and gates."""
    (model, _, gating), (plain, _, theirs) = one, other
    pairs = (
        (whole(model), whole(plain)),
        (gathered(gating.numbers()), gathered(theirs.numbers())),
        (gathered(gating.gates()), gathered(theirs.gates())),
    )
    if not atol:
        return all(equal(*pair) for pair in pairs)
    return all(torch.allclose(a[n], b[n], rtol=0, atol=atol) for a, b in pairs for n in b)


def slack(options):
    """Torch sums the last columns of a piece otherwise than those before."""
    return 1e-6 if options.get("groups") == "channel" and dist.get_world_size() > 1 else 0.0


@torch.no_grad()
def give_row(parameter):
    """Weights from outside, in one row, of which some may have vanished."""
    values = gathered(parameter.detach().clone())
    values[2:3] = 0.25
    parameter.copy_(dealt(values, parameter))


def check_training(kinds):
    for kind in kinds:
        for made, options in CASES[kind].items():
            runs = [started(k, made, options) for k in (kind, None)]
            names, atol = list(runs[1][2].gates()), slack(options)
            assert same(*runs, atol), (kind, made, "start")
            assert runs[0][2].penalty() == pytest.approx(runs[1][2].penalty(), rel=1e-7)
            for at in range(0, 18, 6):
                for model, optimizer, _ in runs:
                    step_with(model, optimizer, at, at + 6, summed=names)
                assert same(*runs, atol), (kind, made, at)
                weight = whole(runs[1][0])[names[0]]
                groups = grouping(options.get("groups", "neuron"), weight.shape)
                norms = groups.total(weight.square()).sqrt()
                threshold = float(norms.median()) + 1e-4 if at == 6 else 1e-9
                masks = [gating.collapse_(threshold) for *_, gating in runs]
                assert equal(*masks), (kind, made, at)
                assert all(mask.all() for mask in masks[1].values()) == (at == 0)
                assert masks[1][names[0]].any()
                assert same(*runs, atol), (kind, made, at)
                for model, *_ in runs:
                    give_row(model.get_parameter(names[0]))


def convolutions(dim):
    """Cut along any dimension, or whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 7, (3, 4), bias=False), nn.Conv2d(6, 4, (3, 4), bias=False))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if dim is None:
        return model
    return fully_shard(model, mesh=mesh, shard_placement_fn=lambda p: Shard(dim))


def check_convolutions():
    for dim, options in (
        (0, {"groups": "neuron"}),
        (0, {"groups": "kernel"}),
        (1, {"groups": "kernel", "start": "balanced"}),
        (1, {"groups": "channel"}),
    ):
        runs = []
        for model in (convolutions(dim), convolutions(None)):
            made = torch.optim.SGD(model.parameters(), lr=0.1)
            runs.append((model, made, DGating(model, made, strength=0.02, **options)))
            step_with(model, made, 0, 6)
        assert same(*runs, slack(options)), (dim, options)
        assert equal(*(gating.collapse_(0.4) for *_, gating in runs)), (dim, options)
    model = convolutions(3)
    made = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ArgumentError, match="'1.weight' lies on several processes"):
        DGating(model, made, strength=0.1, groups="block:2", where="1.*")


def check_resuming(folder, kinds):
    """Saved at step 7 by every process, and loaded into other weights."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    for kind in kinds:
        for made, options in CASES[kind].items():
            first = started(kind, made, options)
            step_with(*first[:2], 0, 7, summed=())
            weights, state = get_state_dict(*first[:2])
            place = f"{folder}/{kind}-{made}"
            dcp.save({"model": weights, "optimizer": state}, checkpoint_id=place)
            again = started(kind, made, options, seed=9)
            weights, state = get_state_dict(*again[:2])
            dcp.load({"model": weights, "optimizer": state}, checkpoint_id=place)
            set_state_dict(*again[:2], model_state_dict=weights, optim_state_dict=state)
            assert again[2].iteration == 7
            for model, optimizer, _ in (first, again):
                step_with(model, optimizer, 7, 12, summed=())
            assert same(again, first), (kind, made)


def check_whole_state(kinds):
    """What one process has saved is cut."""
    for kind in kinds:
        for made, options in CASES[kind].items():
            plain, cut = started(None, made, options), started(kind, made, options, seed=9)
            step_with(*plain[:2], 0, 3)
            saved = plain[2].state_dict()
            cut[2].load_state_dict(saved)
            found = gathered(cut[2].state_dict())
            for key in ("behind", "gates"):
                assert equal(found[key], saved[key]), (kind, made, key)
            assert found["states"].keys() == saved["states"].keys()
            for name, state in saved["states"].items():
                assert equal(found["states"][name], state), (kind, made, name)
            weights = whole(cut[0])
            assert all(torch.equal(weights[n], whole(plain[0])[n]) for n in saved["behind"])


def check_refused():
    """Groups that lie on several processes, on all of them."""
    for kind, options, name in (
        ("fsdp", {"groups": "channel"}, "0.weight"),
        ("tensors", {}, "2.weight"),
        ("tensors", {"groups": "block:4", "where": "2.weight"}, "2.weight"),
        ("both", {"where": "2.weight", "groups": "channel"}, "2.weight"),
    ):
        model = (KINDS | BOTH)[kind](net())
        made = torch.optim.SGD(model.parameters(), lr=0.1)
        before = whole(model)
        with pytest.raises(ArgumentError, match=rf"'{name}' lies .* as \(.*Shard.* cuts groups"):
            DGating(model, made, strength=0.1, **options)
        give_gradients(model, 0)
        made.step()  # nothing is hooked
        assert not equal(whole(model), before)


def check_strange_placements():
    """Sums that are yet to be made, and rows that lie apart."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    mesh = init_device_mesh("cpu", (1, dist.get_world_size()))
    for lies in ([Shard(0), Partial()], [_StridedShard(0, split_factor=3), Shard(0)]):
        layer = nn.Linear(3, 6, bias=False)
        layer.weight = nn.Parameter(DTensor.from_local(torch.ones(6, 3), mesh, lies))
        made = torch.optim.SGD(layer.parameters(), lr=0.1)
        masks = {"weight": torch.ones(layer.weight.shape) > 0}
        for call in (
            lambda: DGating(layer, made, strength=0.1),  # noqa: B023
            lambda: sc.optim.RigL(layer, made, sparsity=0.5, steps=9),  # noqa: B023
            lambda: sc.optim.FactorizedSGD(layer.named_parameters()),  # noqa: B023
            lambda: sc.hold(layer, masks, made, same_on_ranks=False),  # noqa: B023
            lambda: sc.apply_(layer, masks),  # noqa: B023
        ):
            with pytest.raises(SecateursError, match="'weight' lies on .* neither Shard nor Rep"):
                call()


def check_all(folder, kinds):
    check_training(kinds)
    check_resuming(folder, kinds)
    check_whole_state(kinds)
    reparametrized._packs = lambda weights: [reparametrized.Pack(weights)]
    check_training(kinds)


def check_two(folder):
    check_convolutions()
    check_all(folder, KINDS)
    check_refused()


def test_one_process(tmp_path):
    with process_group(tmp_path):
        check_strange_placements()
        check_training((*KINDS, *BOTH))
        check_resuming(tmp_path, (*KINDS, *BOTH))
        check_whole_state((*KINDS, *BOTH))


@pytest.mark.slow
def test_two_processes(tmp_path):
    on_processes(tmp_path, check_two, str(tmp_path))


@pytest.mark.slow
def test_four_processes(tmp_path):
    on_processes(tmp_path, check_all, str(tmp_path), BOTH, ranks=4)
