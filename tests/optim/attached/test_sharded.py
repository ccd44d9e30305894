"""Methods that act weight by weight, on models sharded by `fully_shard`: against the plain model,
and through a distributed checkpoint, on one process and on two.
"""

import os

import pytest
import torch
import torch.distributed as dist

from optim.attached_methods import METHODS, OPTIMIZERS, STEPS, generator, network, train
from optim.holding.test_ranks import process_group, runs_here, sharded, whole
from optim.pieces import BOTH, net, on_processes, step_with
from ranks import run_ranks

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="needs gloo"
)
ELEMENTWISE = ("ham", "power")


def started(method, optimizer, *, size=None, seed=0):
    model = network(seed=seed)
    if size is not None:
        model = sharded(model, size)
    made = OPTIMIZERS[optimizer](model.parameters())
    return model, made, METHODS[method](model, made, generator())


def check_training(size):
    """Sharded or not, the weights are the same."""
    for method in ELEMENTWISE:
        for optimizer in ("sgd", "adamw"):
            model, made, attached = started(method, optimizer, size=size)
            train(model, made)
            plain, its, own = started(method, optimizer)
            train(plain, its)
            found = whole(model)
            for name, expected in plain.named_parameters():
                # Powers are rounded by where a number stands in its piece.
                torch.testing.assert_close(found[name], expected.detach(), atol=1e-6, rtol=0)
            if method == "power":
                for name, numbers in attached.numbers().items():
                    # In pieces as the weights are.
                    assert numbers.placements == model.get_parameter(name).placements
                    torch.testing.assert_close(
                        numbers.full_tensor(), own.numbers()[name], atol=1e-3, rtol=0
                    )


def check_checkpoint(size, folder):
    """What is loaded goes on bit for bit, also from another start."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    for method in ELEMENTWISE:
        model, made, _ = started(method, "adamw", size=size)
        train(model, made, end=17)
        weights, state = get_state_dict(model, made)
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/{method}")
        again, theirs, attached = started(method, "adamw", size=size, seed=99)
        weights, state = get_state_dict(again, theirs)
        dcp.load({"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/{method}")
        set_state_dict(again, theirs, model_state_dict=weights, optim_state_dict=state)
        assert attached.iteration == 17
        for one, optimizer in ((model, made), (again, theirs)):
            train(one, optimizer, begin=17, end=STEPS)
        expected = whole(model)
        assert all(torch.equal(value, expected[name]) for name, value in whole(again).items())


@runs_here
@pytest.mark.filterwarnings("ignore")  # of torch, about one process
def test_one_process(tmp_path):
    with process_group(tmp_path):
        check_training(1)
        check_checkpoint(1, tmp_path)


def process(rank, folder):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    meet = f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=2)
    check_training(2)
    check_checkpoint(2, folder)
    dist.barrier()
    os._exit(0)  # gloo aborts now and then where one process tears down first


@runs_here
@pytest.mark.slow
def test_two_processes(tmp_path):
    run_ranks(process, str(tmp_path), ranks=2)


def check_both():
    for method in ELEMENTWISE:
        for name, make in OPTIMIZERS.items():
            models = BOTH["both"](net()), net()
            for model in models:
                made = make(model.parameters())
                METHODS[method](model, made, None)
                step_with(model, made, 0, 9, summed=())
            for key, found in whole(models[0]).items():
                expected = models[1].get_parameter(key).detach()
                atol = 1e-6 if method == "power" else 0
                torch.testing.assert_close(
                    found, expected, atol=atol, rtol=0, msg=f"{method} {name}"
                )


@pytest.mark.slow
def test_four_processes(tmp_path):
    on_processes(tmp_path, check_both, ranks=4)
