"""A closure is called as a training loop would."""

import copy
import os

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from ranks import run_ranks
from secateurs.optim import Factorized, FactorizedSGD


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("options", [{}, {"depth": None}])
def test_a_closure_called_once_is_the_loop_without_it(fused, options):
    results = []
    for closed in (False, True):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = FactorizedSGD(
            model.named_parameters(), lr=0.1, strength=1e-2, fused=fused, **options
        )
        results.append((train(model, optimizer, closed), model))
    assert results[0][0] == results[1][0]
    for one, other in zip(results[0][1].parameters(), results[1][1].parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("base", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
def test_a_closure_with_any_base(base):
    results = []
    for closed in (False, True):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = Factorized(model.named_parameters(), base=base, base_kwargs={"lr": 1e-2})
        results.append(train(model, optimizer, closed))
    assert results[0] == results[1]


def train(model, optimizer, closed):
    """Five steps; the losses, each from one evaluation a step."""
    x, losses, calls = torch.randn(16, 6), [], []

    def closure():
        calls.append(1)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(5):
        if closed:
            with torch.no_grad():
                losses.append(float(optimizer.step(closure).detach()))
        else:
            losses.append(float(closure().detach()))
            assert optimizer.step() is None
    assert len(calls) == 5
    return losses


def data(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(16, 6, generator=generator, dtype=torch.float64), torch.randint(
        3, (16,), generator=generator
    )


def worker(rank, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(rank)  # ranks draw different factors: rank 0's must win
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = FactorizedSGD(model.named_parameters(), lr=0.1, strength=0.02)
    for step in range(60):
        x, y = data(2 * step + rank)
        optimizer.zero_grad()
        F.cross_entropy(wrapped(x.float()), y).backward()
        optimizer.step()
    masks = optimizer.collapse_().masks
    torch.testing.assert_close(dict(model.named_parameters())["0.weight"].bool(), masks["0.weight"])
    for tensor in (*model.parameters(), *masks.values()):
        mine = tensor.detach().float()
        theirs = mine.clone()
        dist.broadcast(theirs, 0)
        if not torch.equal(mine, theirs):
            raise SystemExit(3)
    dist.barrier()
    os._exit(
        0
        # gloo aborts now and then when one rank tears down before the other; teardown is not tested
        # here
    )


def test_two_ranks_hold_the_same_weights_and_masks(tmp_path):
    run_ranks(worker, str(tmp_path), ranks=2)


def stages(rank, folder):
    """Ranks 0 and 2 have one model, rank 1 another of the same shapes, as in a pipeline."""
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3)

    def everywhere(model):
        flat = torch.cat([p.detach().flatten() for p in model.parameters()])
        found = [torch.empty_like(flat) for _ in range(3)]
        dist.all_gather(found, flat)
        return found

    torch.manual_seed(rank % 2)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
    before = [p.detach().clone() for p in model.parameters()]
    FactorizedSGD(model.named_parameters(), lr=0.1, init="pretrained")
    for p, old in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), old)  # roots round

    torch.manual_seed(10 + rank)  # all draw other factors
    FactorizedSGD(model.named_parameters(), lr=0.1, init="dwf")
    first, second, third = everywhere(model)
    assert torch.equal(first, third) and not torch.equal(first, second)

    torch.manual_seed(20 + rank)
    other = nn.Linear(3 + rank, 2)  # other shapes: a broadcast would fail, or read beyond the end
    FactorizedSGD(other.named_parameters(), lr=0.1)

    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
    ours = ZeroRedundancyOptimizer(
        whole.parameters(), FactorizedSGD, lr=0.1, strength=0.01, init="pretrained"
    )
    alone = copy.deepcopy(whole)
    plain = FactorizedSGD(alone.parameters(), lr=0.1, strength=0.01, init="root")
    for _ in range(3):
        for m, o in ((whole, ours), (alone, plain)):
            o.zero_grad()
            m(torch.ones(4, 6)).square().sum().backward()
            o.step()
    first, second, third = everywhere(whole)
    assert torch.equal(first, second) and torch.equal(first, third)
    for p, q in zip(whole.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p, q)
    dist.barrier()
    os._exit(0)  # gloo aborts now and then where one process tears down first


def test_ranks_that_hold_other_weights_keep_their_own(tmp_path):
    run_ranks(stages, str(tmp_path), ranks=3)
