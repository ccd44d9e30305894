"""A training left at any step and taken up again is the training that was never left."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from secateurs_lab.data import augment, from_tensors
from secateurs_lab.models import build
from secateurs_lab.train import Loop, Ranks, cosine


class Left(Exception):
    """Somebody pulled the plug."""


@pytest.fixture(scope="module")
def data():
    g = torch.Generator().manual_seed(7)
    x, y = (
        torch.randn(50, 1, 12, 12, generator=g),
        torch.randint(0, 3, (50,), generator=g),
    )
    return from_tensors("noise", train_x=x, train_y=y, test_x=x[:21], test_y=y[:21], classes=3)


def loop(data, *, model=None, callbacks=(), seed=3, **options):
    model = model or build(
        "lenet-5",
        in_channels=1,
        classes=3,
        size=12,
        generator=torch.Generator().manual_seed(1),
    )
    # Not used by the network; the global source is tested with `noisy`.
    model.dropout = nn.Dropout(0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(seed)
    return Loop(
        model=model, data=data, optimizer=optimizer, length="3ep", batch=16, schedule=cosine(),
        augment=augment, generator=generator, callbacks=callbacks, **options,
    )  # fmt: skip


def without_seconds(history):
    return [
        (e.epoch, e.iteration, e.loss, e.test_loss, e.test_accuracy, e.learning_rate)
        for e in history
    ]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("stop", range(1, 10))
def test_resuming_is_bit_exact_at_every_step(data, stop, drop_last):
    whole = loop(data, drop_last=drop_last)
    expected = whole.run()
    held = {}

    def leave(moment):
        if moment.clock.iteration == stop:
            held["model"] = copy.deepcopy(moment.model.state_dict())
            held["optimizer"] = copy.deepcopy(moment.optimizer.state_dict())
            held["standing"] = moment.standing()
            raise Left

    with pytest.raises(Left):
        loop(data, callbacks=[leave], drop_last=drop_last).run()
    resumed = loop(data, seed=99, drop_last=drop_last)
    resumed.model.load_state_dict(held["model"])
    resumed.optimizer.load_state_dict(held["optimizer"])
    found = resumed.run(held["standing"])
    assert without_seconds(found.history) == without_seconds(expected.history)
    for ours, theirs in zip(
        resumed.model.state_dict().values(),
        whole.model.state_dict().values(),
        strict=True,
    ):
        assert torch.equal(ours, theirs)
    assert [g["lr"] for g in resumed.optimizer.param_groups] == [0.05]


def test_stopping_early_keeps_the_schedule_of_the_whole(data):
    rates = []
    part = loop(
        data,
        callbacks=[lambda moment: rates.append(moment.optimizer.param_groups[0]["lr"])],
        stop=5,
    )
    assert part.run().iterations == 5
    full = []
    loop(
        data,
        callbacks=[lambda moment: full.append(moment.optimizer.param_groups[0]["lr"])],
    ).run()
    assert rates == full[:5]


def test_bf16_runs_the_forward_pass_in_bf16(data):
    seen = []

    def loss(outputs, labels):
        seen.append(outputs.dtype)
        return torch.nn.functional.cross_entropy(outputs.float(), labels)

    loop(data, precision="bf16", loss=loss, evaluate_every=0, stop=2).run()
    assert seen == [torch.bfloat16] * 2


def test_shares_of_a_batch_have_the_gradient_of_the_batch(data):
    """Weighted by size, the means of two uneven shares average to the mean of the whole."""
    x, y = data.train_x[:7], data.train_y[:7]
    model = build("lenet-300-100", in_channels=1, classes=3, size=12)
    whole = torch.nn.functional.cross_entropy(model(x), y)
    parts = []
    for rank in range(3):
        xs, ys, weight = Ranks(rank=rank, world=3).share(x, y)
        parts.append(torch.nn.functional.cross_entropy(model(xs), ys) * weight)
    assert torch.allclose(sum(parts) / 3, whole)
    assert Ranks(rank=2, world=3).share(x[:2], y[:2])[2] == 0.0


TWO = """
import sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from secateurs_lab.data import from_tensors
from secateurs_lab.models import build
from secateurs_lab.train import Loop, Ranks

torch.set_num_threads(1)
ranks = Ranks.from_environment()
meeting = {"init_method": "file://" + sys.argv[1], "rank": ranks.rank}
if ranks.world > 1:
    dist.init_process_group("gloo", world_size=ranks.world, **meeting)
g = torch.Generator().manual_seed(0)
x, y = torch.rand(100, 1, 8, 8, generator=g), torch.arange(100) % 10
data = from_tensors("noise", train_x=x, train_y=y, test_x=x, test_y=y)
model = build("lenet-300-100", size=8, generator=torch.Generator().manual_seed(1))
loop = Loop(
    model=model, data=data,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    length="2ep", batch=17, ranks=ranks, forward=DDP(model) if ranks.world > 1 else None,
    generator=torch.Generator().manual_seed(0),
)
done = loop.run()
if ranks.rank == 0:
    whole = float(sum(p.double().sum() for p in model.parameters()))
    print("losses", [round(e.loss, 6) for e in done.history], whole)
if ranks.world > 1:
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path):
    """With what `torchrun` sets, without its ports and the host's name, which can fail."""
    script = tmp_path / "two.py"
    script.write_text(TWO)
    root = Path(__file__).parents[4]
    source = os.pathsep.join((str(root / "src"), str(root / "lab" / "src")))
    env = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    env |= {"GLOO_SOCKET_IFNAME": "lo"}

    def start(**ranks):
        return subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / "meeting")],
            env=env | ranks,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    pair = [start(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2") for rank in ("0", "1")]
    ends = [process.communicate(timeout=300) for process in pair]
    assert [process.returncode for process in pair] == [0, 0], ends
    told = ends[0][0]
    alone = start()
    single, errors = alone.communicate(timeout=300)
    assert alone.returncode == 0, errors
    two, one = told.split("] "), single.split("] ")
    assert two[0] == one[0] and "losses" in one[0]
    assert float(two[1]) == pytest.approx(float(one[1]), abs=1e-4)
