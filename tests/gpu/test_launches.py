"""What a step launches and waits for, counted on the pretend GPU: budgets that may only fall.

Of a small network with the structure of ResNet-18 (62 parameters, 21 of them with more than one
dimension), after the steps in which buffers are made.
"""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

import secateurs as sc

pretend = pytest.importorskip("pretend")
if pretend.WHY_NOT or not torch.cuda.is_available():
    pytest.skip("counted on the pretend GPU alone: -p pretend", allow_module_level=True)

FACTORIZED = {"lr": 0.1, "momentum": 0.9, "strength": 1e-4, "init": "dwf"}


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, before, after):
        super().__init__()
        layers = [nn.Conv2d(before, after, 3, bias=False), nn.BatchNorm2d(after)]
        layers += [nn.Conv2d(after, after, 3, bias=False), nn.BatchNorm2d(after)]
        if before != after:
            layers += [nn.Conv2d(before, after, 1, bias=False), nn.BatchNorm2d(after)]
        self.layers = nn.ModuleList(layers)


def network():
    torch.manual_seed(0)
    widths = [4, 4, 4, 8, 8, 16, 16, 32, 32]
    blocks = [Block(before, after) for before, after in pairwise(widths)]
    stem = [nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)]
    model = nn.Sequential(*stem, *blocks, nn.Linear(32, 10)).cuda()
    assert len(list(model.parameters())) == 62
    return model


def llama():
    """The 39 parameters of a Llama of four blocks, 29 of them in linear layers."""
    torch.manual_seed(0)
    shapes = [(16, 16), (8, 16), (8, 16), (16, 16), (40, 16), (40, 16), (16, 40)]
    blocks = [
        nn.ModuleList(
            [*(nn.Linear(i, o, bias=False) for o, i in shapes), nn.RMSNorm(16), nn.RMSNorm(16)]
        )
        for _ in range(4)
    ]
    last = [nn.RMSNorm(16), nn.Linear(16, 64, bias=False)]
    model = nn.Sequential(nn.Embedding(64, 16), *blocks, *last).cuda()
    assert len(list(model.parameters())) == 39
    return model


def masks_of(model):
    return sc.prune_(model, "magnitude", sparsity=0.9).masks


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **options)


def held(model, optimizer):
    # What attaches itself to an optimizer ends with the last reference to it.
    model.kept = sc.hold(model, masks_of(model), optimizer)
    return optimizer


def attached(method, model, **options):
    optimizer = sgd(model, foreach=True)
    model.kept = method(model, optimizer, **options)
    return optimizer


CASES = {
    "sgd foreach": (lambda m: sgd(m, foreach=True), 3, 0),
    "sgd fused": (lambda m: sgd(m, fused=True), 2, 0),
    "hold": (lambda m: held(m, sgd(m, foreach=True)), 5, 0),
    "hold, AdamW": (
        lambda m: held(m, torch.optim.AdamW(m.parameters(), lr=1e-3, fused=True)),
        6,
        0,
    ),
    **{
        f"factorized, D = {depth}": (
            lambda m, depth=depth: sc.optim.FactorizedSGD(
                m.parameters(), depth=depth, **FACTORIZED
            ),
            most,
            0,
        )
        for depth, most in ((2, 11), (3, 17), (4, 18))
    },
    "factorized, norms and biases not": (
        lambda m: sc.optim.FactorizedSGD(
            m.named_parameters(), depth=3, where=lambda _, p: p.ndim > 1, **FACTORIZED
        ),
        15,
        0,
    ),
    "factorized AdamW": (
        lambda m: sc.optim.Factorized(
            m.parameters(),
            base=torch.optim.AdamW,
            base_kwargs={"lr": 1e-3},
            depth=2,
            strength=1e-4,
            init="dwf",
        ),
        33,
        1,
    ),
    "ham": (lambda m: attached(sc.optim.HAM, m), 13, 0),
    # 20 beside SGD's own, which takes two launches a pass for the weights and their gates.
    "d-gating": (lambda m: attached(sc.optim.DGating, m, strength=1e-3), 26, 0),
    "power propagation": (lambda m: attached(sc.optim.PowerPropagation, m), 22, 0),
    "rigl": (lambda m: attached(sc.optim.RigL, m, sparsity=0.9, steps=100, every=50), 5, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_stays_within_its_budget(name):
    make, launches, waits = CASES[name]
    counts = count_step(network(), make)
    assert counts.launched <= launches, counts.launches
    assert counts.waited <= waits, counts.waits


def count_step(model, make):
    """What a step launches, after those in which buffers are made."""
    optimizer = make(model)
    for _ in range(4):
        give_gradients(model)
        optimizer.step()
    give_gradients(model)
    with pretend.counted() as counts:
        optimizer.step()
    return counts


@pytest.mark.parametrize(
    "name", ["hold", "hold, AdamW", "ham", "rigl", "d-gating", "power propagation"]
)
@pytest.mark.parametrize("kind", ["deep", "llama", "channels last", "bfloat16", "two groups"])
def test_a_step_launches_as_much_for_any_network(name, kind):
    """None by parameter: torch fits so and so many tensors into one launch."""
    model = network()
    make, launches, waits = CASES[name]
    if kind == "deep":
        model, launches = nn.Sequential(model, network()), 2 * launches
    elif kind == "llama":
        model = llama()
    elif kind == "channels last":
        model = model.to(memory_format=torch.channels_last)
    elif kind == "bfloat16":
        # The sum over the groups of D-Gating is that of float32: it casts twice.
        model, launches = model.bfloat16(), launches + 2 * (name == "d-gating")
    if kind == "two groups":
        # A pass over the weights for each of the optimizer's own, and of HAM's.
        plain, launches = make, 3 * launches

        def make(model):
            optimizer = plain(model)
            last = optimizer.param_groups[0]["params"].pop()
            optimizer.add_param_group({"params": [last], "lr": 0.01})
            return optimizer

    counts = count_step(model, make)
    assert counts.launched <= launches, counts.launches
    assert counts.waited <= waits, counts.waits


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        ("every 16th", {2: 18, 3: 24, 4: 25}),
        ("bfloat16", {2: 13, 3: 19, 4: 20}),
        # As any step, whatever the optimizer was given first.
        ("channels last", {2: 11, 3: 17, 4: 18}),
        ("channels last, later", {2: 11, 3: 17, 4: 18}),
        ("channels last, bfloat16", {2: 13, 3: 19, 4: 20}),
        ("channels last, every 16th", {2: 18, 3: 24, 4: 25}),
        ("held", {2: 13, 3: 19, 4: 20}),
        ("llama", {2: 9, 3: 14, 4: 16}),
    ],
)
@pytest.mark.parametrize("depth", [2, 3, 4])
def test_a_factorized_step_stays_within_its_budget(kind, most, depth):
    model = llama() if kind == "llama" else network()
    if "bfloat16" in kind:
        model = model.bfloat16()
    if "channels last" in kind and "later" not in kind:
        model = model.to(memory_format=torch.channels_last)
    optimizer = sc.optim.FactorizedSGD(model.parameters(), depth=depth, **FACTORIZED)
    if "later" in kind:
        model.to(memory_format=torch.channels_last)
    if kind == "held":
        optimizer = held(model, optimizer)
    for _ in range(16 if "every 16th" in kind else 4):
        give_gradients(model)
        optimizer.step()
    give_gradients(model)
    with pretend.counted() as counts:
        optimizer.step()
    assert counts.launched <= most[depth], counts.launches
    assert counts.waited == 0, counts.waits


def test_a_device_that_is_behind_is_waited_for_once_and_before_anything_is_launched(monkeypatch):
    """For what it has done before the pass that is over: it goes on with that one meanwhile."""
    model = network()
    optimizer = held(model, sc.optim.FactorizedSGD(model.parameters(), depth=3, **FACTORIZED))
    for _ in range(4):
        give_gradients(model)
        optimizer.step()
    monkeypatch.setattr(torch.cuda.Event, "behind", True)
    with pretend.counted() as counts:
        optimizer.settle_()
    assert (counts.launched, counts.waited) == (0, 1)
    give_gradients(model)
    with pretend.counted() as counts:
        optimizer.step()
    assert counts.waited == 0, counts.waits
    give_gradients(model)
    with pretend.counted() as counts:
        optimizer.step()
    assert counts.waited == 1 and all(wait.startswith("event") for wait in counts.waits)


SCALED = {
    # Eight launches are the scaler's own, and the wait to hear whether a gradient is infinite.
    "sgd foreach": (11, 1),
    "sgd fused": (10, 1),
    "hold": (13, 1),
    "ham": (21, 1),
    "d-gating": (34, 1),
    "power propagation": (30, 1),
    "rigl": (13, 1),
    "factorized, D = 3": (25, 1),
}


@pytest.mark.parametrize("name", SCALED)
def test_a_step_of_a_scaler_stays_within_its_budget(name):
    launches, waits = SCALED[name]
    model = network()
    optimizer = CASES[name][0](model)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)

    def step():
        scaler.scale(torch.zeros((), device="cuda"))
        give_gradients(model)
        with pretend.counted() as counts:
            scaler.step(optimizer)
            scaler.update()
        return counts

    for _ in range(4):
        step()
    before = [p.clone() for p in model.parameters()]
    counts = step()
    assert any((p != old).any() for p, old in zip(model.parameters(), before, strict=True))
    assert counts.launched <= launches, counts.launches
    assert counts.waited <= waits, counts.waits


CHANGES = {
    # RigL had 97 launches and six waits a masked parameter when each was ranked by itself. It waits
    # to hear that weights and gradients are finite; SET, how many weights are positive, too.
    "rigl": (sc.optim.RigL, 5, 213, 1),
    "set": (sc.optim.SET, 4, 383, 2),
    "ac/dc, to sparse": (sc.optim.ACDC, 20, 111, 5),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_masks_stays_within_its_budget(name):
    make, step, launches, waits = CHANGES[name]
    model = network()
    every = {"every": 5} if make is sc.optim.ACDC else {"every": 4}
    optimizer = attached(make, model, sparsity=0.9, steps=100, **every)
    for _ in range(step - 1):
        give_gradients(model)
        optimizer.step()
    give_gradients(model)
    before = model.kept.masks
    with pretend.counted() as counts:
        optimizer.step()
    assert any((before[name] != mask).any() for name, mask in model.kept.masks.items())
    assert counts.launched <= launches, counts.launches
    assert counts.waited <= waits, counts.waits


def give_gradients(model):
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) * 1e-3


def test_tensors_of_two_devices_do_not_meet():
    there = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="same device"):
        there + torch.ones(3)
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, device="cuda", generator=torch.Generator())
    assert (there + torch.tensor(1.0)).device.type == "cuda"


def test_waits_and_bytes_are_counted():
    there = torch.ones(4, device="cuda")
    with pretend.counted() as counts:
        there.view(2, 2).add_(1)
        float(there.sum())
        there.cpu()
    assert (counts.launched, counts.waited, counts.to_host) == (2, 2, 16)


def test_the_command_for_a_gpu_begins(tmp_path):
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [
            *(sys.executable, "benchmarks/gpu.py", "--rehearse", "--out", str(tmp_path)),
            *("--parts", "machine", "select"),
        ],
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root / 'tests'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert not [row for row in rows if "failed" in row or "stopped" in row]
    assert all(row["right"] for row in rows if row["part"] == "select")
