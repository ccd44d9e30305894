"""Methods whose masks change, on models in pieces: masks, weights and costs of one process."""

import pytest
import torch
import torch.distributed as dist

import secateurs as sc
from masks.grid import equal
from optim.attached_methods import OPTIMIZERS
from optim.holding.test_ranks import process_group
from optim.pieces import (
    BOTH,
    KINDS,
    by_fsdp,
    give_gradients,
    needs_gloo,
    net,
    on_processes,
    step_with,
    whole,
)
from secateurs.errors import TrainingError
from secateurs.optim import ACDC, SET, RigL

pytestmark = needs_gloo
SPARSE = {"sparsity": 0.7, "steps": 24}

CASES = {
    "rigl": lambda m, o, g: RigL(m, o, **SPARSE, every=4, generator=g),
    "set": lambda m, o, g: SET(m, o, **SPARSE, every=4, generator=g),
    "acdc": lambda m, o, g: ACDC(m, o, **SPARSE, every=3),
}


def started(kind, case, made="sgd", *, seed=0, own=5):
    model = net(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_((16 * p).round() / 16)  # many are equal: the rule for ties has to be the same
    model = model if kind is None else (KINDS | BOTH)[kind](model)
    optimizer = OPTIMIZERS[made](model.parameters())
    generator = None if own is None else torch.Generator().manual_seed(own)
    return model, optimizer, CASES[case](model, optimizer, generator)


def check_training(kinds=KINDS):
    for kind in kinds:
        for case in CASES:
            for made in ("sgd", "adamw"):
                model, optimizer, method = started(kind, case, made)
                plain, theirs, expected = started(None, case, made)
                first = expected.masks
                for begin in (0, 8, 16):
                    assert equal(method.masks, expected.masks), (kind, case, made, begin)
                    step_with(model, optimizer, begin, begin + 8, tied=True)
                    step_with(plain, theirs, begin, begin + 8, tied=True)
                    assert equal(whole(model), whole(plain)), (kind, case, made, begin)
                assert not equal(first, expected.masks)
                assert (method.kept, method.cost.share) == (expected.kept, expected.cost.share)
                assert all(not whole(model)[n][~m].any() for n, m in method.masks.items())


def check_resuming(folder, kinds=KINDS):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    for kind in kinds:
        for case in CASES:
            model, optimizer, method = started(kind, case, "adamw")
            step_with(model, optimizer, 0, 10, tied=True)
            weights, state = get_state_dict(model, optimizer)
            place = f"{folder}/{kind}-{case}"
            dcp.save({"model": weights, "optimizer": state}, checkpoint_id=place)
            again, theirs, resumed = started(kind, case, "adamw", seed=9, own=6)
            weights, state = get_state_dict(again, theirs)
            dcp.load({"model": weights, "optimizer": state}, checkpoint_id=place)
            set_state_dict(again, theirs, model_state_dict=weights, optim_state_dict=state)
            for one, own in ((model, optimizer), (again, theirs)):
                step_with(one, own, 10, 24, tied=True)
            assert equal(whole(again), whole(model)), (kind, case)
            assert equal(resumed.masks, method.masks), (kind, case)
            assert resumed.cost.share == method.cost.share


def check_that_the_first_process_draws(cut=by_fsdp):
    """Without a generator of their own, and with others on each process."""
    found = []
    for model, seed in ((cut(net()), 3 + dist.get_rank()), (net(), 3)):
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        torch.manual_seed(seed)
        method = CASES["set"](model, optimizer, None)
        found.append(method.masks)
        step_with(model, optimizer, 0, 5, tied=True)
        found.append(method.masks)
    assert equal(found[0], found[2])
    assert equal(found[1], found[3])


def check_what_happens_to_one_process():
    model = by_fsdp(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rigl = RigL(model, optimizer, sparsity=0.5, steps=9, every=1, end=8)
    step_with(model, optimizer, 0, 1, tied=True)
    before = rigl.masks
    give_gradients(model, 1, broken=("0.weight",), tied=True)
    with pytest.raises(TrainingError, match="the gradient of '0.weight' is not finite after 1"):
        optimizer.step()
    assert equal(rigl.masks, before)
    sc.optim.HAM(model, optimizer)  # another method may stand beside it


def check_all(folder):
    check_training()
    check_resuming(folder)
    check_that_the_first_process_draws()
    check_what_happens_to_one_process()


def check_both(folder):
    check_training(BOTH)
    check_resuming(folder, BOTH)
    check_that_the_first_process_draws(BOTH["both"])


def test_one_process(tmp_path):
    with process_group(tmp_path):
        check_resuming(tmp_path)
        check_what_happens_to_one_process()


@pytest.mark.slow
def test_two_processes(tmp_path):
    on_processes(tmp_path, check_all, str(tmp_path))


@pytest.mark.slow
def test_four_processes(tmp_path):
    on_processes(tmp_path, check_both, str(tmp_path), ranks=4)
