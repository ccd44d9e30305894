"""Many runs at once: each against the plain way."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from secateurs.errors import ArgumentError, TrainingError
from secateurs.optim import FactorizedSGD
from secateurs_lab.train import grid
from secateurs_lab.train.sweep import pays


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3)).double()


def data(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(16, 6, generator=generator, dtype=torch.float64), torch.randint(
        3, (16,), generator=generator
    )


@pytest.mark.parametrize("batched", [True, False, None])
def test_a_grid_is_its_runs_one_by_one(batched):
    strengths, seeds, steps = (1e-3, 0.05), (0, 1, 5), 40
    model = network()
    before = [p.clone() for p in model.parameters()]
    runs = grid(
        model,
        F.cross_entropy,
        (data(s) for s in range(steps)),
        strengths=strengths,
        seeds=seeds,
        lr=lambda s: 0.1 * (1 - s / steps),
        schedule=lambda s: s / steps,
        batched=batched,
    )
    assert [(run.strength, run.seed) for run in runs] == [(s, d) for s in strengths for d in seeds]
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    for run in runs:
        alone = network()
        optimizer = FactorizedSGD(
            alone.named_parameters(),
            lr=0.1,
            strength=run.strength,
            steps=steps,
            schedule=lambda t: t,
            generator=torch.Generator().manual_seed(run.seed),
        )
        for step in range(steps):
            x, y = data(step)
            optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / steps)
            optimizer.zero_grad()
            F.cross_entropy(alone(x), y).backward()
            optimizer.step()
        left = optimizer.collapse_(alone)
        assert left.kept == run.report.total.kept
        for name, parameter in alone.named_parameters():
            torch.testing.assert_close(run.weights[name], parameter.detach(), rtol=1e-7, atol=1e-9)


def test_both_ways_give_the_same_runs():
    ways = [
        grid(
            network(),
            F.cross_entropy,
            (data(s) for s in range(5)),
            strengths=(1e-3, 0.05),
            seeds=(3,),
            lr=0.1,
            momentum=momentum,
            depth=depth,
            batched=batched,
        )
        for momentum, depth in ((0.0, 2), (0.9, 4))
        for batched in (True, False)
    ]
    for one, other in (ways[:2], ways[2:]):
        for a, b in zip(one, other, strict=True):
            assert (a.strength, a.seed) == (b.strength, b.seed)
            assert a.loss == pytest.approx(b.loss, rel=1e-6)
            for name in a.weights:
                torch.testing.assert_close(a.weights[name], b.weights[name], rtol=1e-7, atol=1e-9)


def test_the_way_is_chosen_by_device_size_and_number():
    assert pays(network(), 6)
    assert not pays(network(), 5)
    assert not pays(nn.Linear(100, 200), 100)
    # Stands for an accelerator: anything that is not a CPU.
    assert pays(nn.Linear(1000, 1000, device="meta"), 3)
    assert not pays(nn.Linear(1000, 1000, device="meta"), 2)


def test_a_grid_refuses_what_runs_cannot_share():
    batches = [(torch.ones(2, 4), torch.zeros(2, dtype=torch.long))]
    with pytest.raises(ArgumentError, match="running statistics of 1"):
        grid(
            nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
            F.cross_entropy,
            batches,
            strengths=[1.0],
            seeds=[0],
            lr=1,
        )
    with pytest.raises(ArgumentError, match="at least one strength"):
        grid(nn.Linear(4, 2), F.cross_entropy, batches, strengths=[], seeds=[0], lr=1)


BAD_GRIDS = [
    (
        {"strengths": [0.1, -1]},
        ArgumentError,
        "strength -1 is not a finite number of at least 0",
    ),
    ({"strengths": [math.nan]}, ArgumentError, "strength nan is not"),
    ({"seeds": [0.5]}, ArgumentError, "seed 0.5 is not a whole number"),
    (
        {"lr": -1},
        ArgumentError,
        "lr=-1 is neither a finite number of at least 0 nor a function",
    ),
    ({"lr": math.nan}, ArgumentError, "lr=nan is neither"),
    ({"lr": lambda step: math.nan}, TrainingError, "lr=nan, schedule=1 at step 0"),
    (
        {"schedule": lambda step: math.nan},
        TrainingError,
        "lr=0.1, schedule=nan at step 0",
    ),
    (
        {"schedule": "ramp"},
        ArgumentError,
        "schedule='ramp' is not a function of the step number",
    ),
    (
        {"threshold": -1},
        ArgumentError,
        "threshold=-1 is not a finite number of at least 0",
    ),
    ({"threshold": "gap"}, ArgumentError, "threshold='gap' is not"),
    ({"batches": []}, ArgumentError, "batches is empty"),
    (
        {"model": network().requires_grad_(False)},
        ArgumentError,
        "no trainable parameter",
    ),
    ({"strengths": [-1], "lr": -1}, ArgumentError, "2 problem.s. with the grid"),
]


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(
    ("options", "kind", "message"),
    BAD_GRIDS,
    ids=[str(list(o)) for o, *_ in BAD_GRIDS],
)
def test_a_grid_of_nonsense_is_refused_either_way(options, kind, message, batched):
    sound = {
        "model": network(),
        "batches": [data(0)],
        "strengths": [1e-3],
        "seeds": [0],
        "lr": 0.1,
    }
    with pytest.raises(kind, match=message):
        grid(loss=F.cross_entropy, batched=batched, **{**sound, **options})


def test_frozen_parameters_stay_as_they_are_either_way():
    model = network()
    model[0].weight.requires_grad_(False)
    runs = [
        grid(
            model,
            F.cross_entropy,
            map(data, range(5)),
            strengths=[1e-3, 0.1],
            seeds=[0],
            lr=0.1,
            batched=batched,
            threshold=0.05,
        )
        for batched in (True, False)
    ]
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one.weights["0.weight"], model[0].weight)
        assert (
            list(one.weights)
            == list(other.weights)
            == [name for name, _ in model.named_parameters()]
        )
        for name in one.weights:
            torch.testing.assert_close(one.weights[name], other.weights[name], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("batched", [True, False])
def test_a_run_that_diverges_is_not_sparse_and_the_others_go_on(batched):
    wild, tame = grid(
        network(),
        F.cross_entropy,
        map(data, range(9)),
        strengths=[1e37, 1e-3],
        seeds=[0],
        lr=0.1,
        batched=batched,
    )
    assert not math.isfinite(wild.loss)
    assert wild.report.sparsity == 0
    assert math.isfinite(tame.loss)
