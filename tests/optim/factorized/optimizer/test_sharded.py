"""Factorized optimizers of models in pieces: those of one process, bit for bit."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import secateurs as sc
from masks.grid import equal
from optim.holding.test_ranks import process_group
from optim.pieces import (
    BOTH,
    KINDS,
    by_fsdp,
    give_gradients,
    needs_gloo,
    net,
    on_processes,
    put_weights,
    step_with,
    whole,
)
from secateurs.errors import ParameterError, TrainingError
from secateurs.masks import apply_
from secateurs.optim import Factorized, FactorizedSGD
from secateurs.optim.factorized.dynamics import Dynamics

pytestmark = needs_gloo
ADAMW = {"base": torch.optim.AdamW, "base_kwargs": {"lr": 0.02}}

CASES = {
    # Weights below `freeze` die, also those of a piece.
    "sgd": lambda ps: FactorizedSGD(ps, lr=0.05, strength=0.01, freeze=1e-3),
    "foreach": lambda ps: FactorizedSGD(ps, lr=0.05, depth=2, fused=False, freeze=1e-3),
    "plain": lambda ps: FactorizedSGD(
        ps, lr=0.05, momentum=0, decoupled=True, init="dwf-wide", where="0.*"
    ),
    "kept": lambda ps: FactorizedSGD(ps, lr=0.02, nesterov=True, init="pretrained", depth=4),
    "target": lambda ps: FactorizedSGD(ps, lr=0.05, steps=24, target_sparsity=0.5, decoupled=True),
    "adamw": lambda ps: Factorized(ps, **ADAMW, depth=2, strength=0.1, decoupled=True),
    "adagrad": lambda ps: Factorized(ps, base=torch.optim.Adagrad, where="*weight"),
}


def started(kind, case, *, seed=0, dtype=torch.float32):
    model = net(seed, dtype)
    model = model if kind is None else (KINDS | BOTH)[kind](model)
    torch.manual_seed(3)
    return model, CASES[case](model.named_parameters())


def factors(optimizer):
    return {
        name: state["factors"].full_tensor()
        if hasattr(state["factors"], "full_tensor")
        else state["factors"]
        for p, name in optimizer.names().items()
        if "factors" in (state := optimizer.state[p])
    }


def same(model, optimizer, plain, theirs, atol=0.0):
    pairs = (whole(model), whole(plain)), (factors(optimizer), factors(theirs))
    if not atol:
        return all(equal(*pair) for pair in pairs)
    return all(
        found.keys() == expected.keys()
        and all(torch.allclose(v, expected[n], rtol=0, atol=atol) for n, v in found.items())
        for found, expected in pairs
    )


def slack(case, dtype=torch.float32):
    """Torch's fused SGD, which moves what is not compiled, rounds the last entries of a tensor
    otherwise, those that fill no register of a processor.
    """
    by_torch = dist.get_world_size() > 1 and (case == "foreach" or dtype != torch.float32)
    return 1e-2 * torch.finfo(dtype).eps ** 0.5 if by_torch else 0.0


def check_training(cases, dtype=torch.float32, kinds=KINDS):
    for kind in kinds:
        for case in cases:
            atol = slack(case, dtype)
            model, optimizer = started(kind, case, dtype=dtype)
            plain, theirs = started(None, case, dtype=dtype)
            assert same(model, optimizer, plain, theirs), (kind, case, "start")
            for one, own in ((model, optimizer), (plain, theirs)):
                step_with(one, own, 0, 12)
                # Somebody else sets zeros: they are dead from now on.
                mask = torch.arange(36 * 34).view(36, 34) % 5 > 0
                sc.hold(one, {"0.weight": mask}, own, same_on_ranks=False).release()
                step_with(one, own, 12, 24)
            assert same(model, optimizer, plain, theirs, atol), (kind, case, "trained")
            assert not whole(model)["0.weight"][~mask].any(), (kind, case)
            found, expected = optimizer.collapse_(model), theirs.collapse_(plain)
            assert equal(found.masks, expected.masks), (kind, case)
            told = ("kept", "total", "threshold", "above_eps", "only_cut", "strength")
            for name in told:
                assert getattr(found, name) == getattr(expected, name), (kind, case, name)
            assert same(model, optimizer, plain, theirs, atol), (kind, case, "collapsed")


def check_resuming(folder, cases, kinds=KINDS):
    """Saved at step 7 by every process, and loaded into other weights."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    for kind in kinds:
        for case in cases:
            model, optimizer = started(kind, case)
            step_with(model, optimizer, 0, 7)
            weights, state = get_state_dict(model, optimizer)
            place = f"{folder}/{kind}-{case}"
            dcp.save({"model": weights, "optimizer": state}, checkpoint_id=place)
            again, resumed = started(kind, case, seed=9)
            weights, state = get_state_dict(again, resumed)
            dcp.load({"model": weights, "optimizer": state}, checkpoint_id=place)
            set_state_dict(again, resumed, model_state_dict=weights, optim_state_dict=state)
            # A state that one process has saved, into pieces.
            plain, theirs = started(None, case)
            step_with(plain, theirs, 0, 7)
            third, taken = started(kind, case, seed=9)
            put_weights(third, plain)
            taken.load_state_dict(theirs.state_dict())
            for one, own in ((model, optimizer), (again, resumed), (third, taken)):
                step_with(one, own, 7, 12)
            step_with(plain, theirs, 7, 12)
            assert same(again, resumed, model, optimizer), (kind, case)
            assert same(third, taken, plain, theirs, slack(case)), (kind, case)


def check_what_happens_to_one_process(kind="fsdp"):
    """A NaN, or a change from outside, in one piece stops every process."""
    for case in ("sgd", "adamw"):
        model, optimizer = started(kind, case)
        step_with(model, optimizer, 0, 2)
        before = whole(model)
        # The first entry lies on the first process, the only row of the last weight, too.
        give_gradients(model, 2, broken=("0.weight", "4.weight"))
        optimizer.step()
        assert equal(whole(model), before)
        assert optimizer.skipped[0].parameters == ("0.weight", "4.weight")
        assert (optimizer.taken, len(optimizer.skipped)) == (2, 1)
        with torch.no_grad():
            model[0].weight.add_(1 if dist.get_rank() == 0 else 0)
        give_gradients(model, 3)
        named = "0.weight" if dist.get_rank() == 0 else "another process"
        with pytest.raises(TrainingError, match=f"changed outside of the optimizer.*{named}"):
            optimizer.step()
        optimizer.refresh_()
        assert equal(whole(model), before)
        optimizer.step()


def check_calls():
    """What a user may call besides."""
    pairs = [started(kind, "sgd") for kind in ("fsdp", "tensors", None)]
    drawn = torch.randn(3, 36, 34)
    drawn[:, 20] = 0
    mask = torch.arange(7 * 36).view(7, 36) % 3 > 0
    seen = []
    for model, optimizer in pairs:
        dynamics = Dynamics(optimizer)
        optimizer.set_factors("0.weight", drawn)
        apply_(model, {"2.weight": mask})
        step_with(model, optimizer, 0, 2)
        with torch.no_grad():
            model[4].bias.fill_(0.5)
        optimizer.adopt_()
        step_with(model, optimizer, 2, 4)
        dynamics.record(1.0)
        seen.append(dynamics.rows())
        assert optimizer.factors("0.weight").shape == (3, 36, 34)
        collapsed = optimizer.collapse_(model, threshold="gap")
        seen.append((collapsed.kept, collapsed.threshold))
    for model, optimizer in pairs[:2]:
        assert same(model, optimizer, *pairs[2])
    assert seen[:2] == seen[2:4] == seen[4:]


def check_that_the_first_process_draws(kind="fsdp"):
    """Generators that differ from process to process make one start."""
    model = (KINDS | BOTH)[kind](net())
    torch.manual_seed(3 + dist.get_rank())
    optimizer = FactorizedSGD(model.named_parameters())
    after = torch.get_rng_state()
    plain = net()
    torch.manual_seed(3)
    theirs = FactorizedSGD(plain.named_parameters())
    assert same(model, optimizer, plain, theirs)
    # The first goes on as it would alone, the others as if nothing had been drawn.
    if dist.get_rank():
        torch.manual_seed(3 + dist.get_rank())
    assert torch.equal(after, torch.get_rng_state())


def check_that_pieces_are_followed():
    """The memory of a piece may be another one after a step, as it is after `model.to`."""
    model, optimizer = started("fsdp", "sgd")
    plain, theirs = started(None, "sgd")
    for step in range(3):
        step_with(model, optimizer, step, step + 1)
        step_with(plain, theirs, step, step + 1)
        model.double().float()
        assert same(model, optimizer, plain, theirs), step


def check_refused():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    layer = nn.Linear(2, 2, bias=False)
    layer.weight = nn.Parameter(DTensor.from_local(torch.ones(2, 2), mesh, [Partial()]))
    with pytest.raises(ParameterError, match="'weight' lies on several processes as .*Partial"):
        FactorizedSGD(layer.named_parameters())
    # What a whole start would refuse is refused on every process.
    model = by_fsdp(net())
    with torch.no_grad():
        if dist.get_rank() == 0:
            model[0].weight.to_local()[0, 0] = torch.nan
    with pytest.raises(ParameterError, match=r"'0.weight' has 1 entries of 1224 that are NaN"):
        FactorizedSGD(model.named_parameters(), init="pretrained")


def check_all(folder):
    check_training(CASES)
    check_training(("sgd", "adamw"), torch.bfloat16)
    check_resuming(folder, CASES)
    check_what_happens_to_one_process()
    check_calls()
    check_that_the_first_process_draws()
    check_that_pieces_are_followed()
    check_refused()


def check_both(folder):
    check_training(CASES, kinds=BOTH)
    check_resuming(folder, CASES, BOTH)
    check_what_happens_to_one_process("both")
    check_that_the_first_process_draws("both")


def test_one_process(tmp_path):
    with process_group(tmp_path):
        check_training(("sgd", "adamw"))
        check_resuming(tmp_path, ("foreach", "adagrad"))
        check_what_happens_to_one_process()
        check_refused()


@pytest.mark.slow
def test_two_processes(tmp_path):
    on_processes(tmp_path, check_all, str(tmp_path))


@pytest.mark.slow
def test_four_processes(tmp_path):
    on_processes(tmp_path, check_both, str(tmp_path), ranks=4)
