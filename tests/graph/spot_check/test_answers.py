"""What a model's code does otherwise for a tracer, in a batch or after other weights is seen: the
answer is right or there is none.
"""

import copy
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import secateurs as sc
from secateurs.errors import CaptureError, SecateursError, StructureMismatch, UnsupportedOperation
from secateurs.ship.c_source import c_source

X = torch.zeros(1, 3)
BOX = torch.zeros(1, 3), torch.ones(1, 3)


class Net(nn.Module):
    def __init__(self, change=lambda s, h: h) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(3, 6), nn.Linear(6, 2)
        self.register_buffer("order", torch.rand(6))
        self.gate = nn.Parameter(torch.rand(6))
        self.change = change
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.change(self, self.a(x))))


def pruned(model: nn.Module) -> nn.Module:
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.a.weight[:2] *= 0.5
    return other


def largest(one: nn.Module, two: nn.Module, batch: int = 1) -> float:
    draw = torch.Generator().manual_seed(1)
    x = torch.rand(100, batch, 3, generator=draw)
    with torch.no_grad():
        return max(float((one(b) - two(b)).abs().max()) for b in x)


LOOKING = {
    "is_compiling": lambda s, h: h if torch.compiler.is_compiling() else 3 * h,
    "is_exporting": lambda s, h: h if torch.compiler.is_exporting() else h.flip(1),
    "the type of a tensor": lambda s, h: h if type(h) is not Tensor else 3 * h,
    "gradients": lambda s, h: 3 * h if torch.is_grad_enabled() else h,
    "no gradients": lambda s, h: 3 * h if not torch.is_grad_enabled() else h,
    "python's chance": lambda s, h: h * random.random(),
    "numpy's chance": lambda s, h: h * float(np.random.rand()),
    "torch's chance": lambda s, h: h * torch.rand(6),
    "a call before": lambda s, h: setattr(s, "n", vars(s).get("n", 0) + 1) or h * s.n,
}


@pytest.mark.parametrize("how", LOOKING)
def test_code_that_looks_at_the_tracer_or_at_chance_is_refused(how):
    plain, model = Net(), Net(LOOKING[how])
    sc.certify(plain, pruned(plain), box=BOX)  # the program of both is known now
    for _ in range(2):
        with pytest.raises(CaptureError):
            sc.certify(plain, model, box=BOX)
        with pytest.raises(CaptureError):
            sc.path_norm(model, X)
        with pytest.raises(CaptureError):
            sc.macs(model, X)
        with pytest.raises(SecateursError):
            c_source(model, X)
        with pytest.raises(SecateursError):
            sc.compact(model, X)


@pytest.mark.parametrize("how", ["is_compiling", "the type of a tensor", "gradients"])
def test_a_switch_that_is_off_does_no_harm_until_it_is_turned_on(how):
    def change(s, h):
        return LOOKING[how](s, h) if s.on else h

    model = Net(change)
    model.on = False
    sc.path_norm(model, X)
    model.on = True
    with pytest.raises(CaptureError):
        sc.path_norm(model, X)


DECIDING = {
    "topk of a parameter": lambda s, h: h[:, s.gate.topk(6).indices],
    "argsort of a buffer": lambda s, h: h.index_select(1, s.order.argsort()),
    "long of a buffer": lambda s, h: h.gather(1, (5 * s.order).long()[None].expand(len(h), 6)),
    "a mask of a parameter": lambda s, h: h * (s.gate > 0.5),
}


@pytest.mark.parametrize("how", DECIDING)
def test_an_index_from_a_float_is_read_anew(how):
    model = Net(DECIDING[how])
    graph, before = sc.capture(model, X), sc.path_norm(model, X)
    fresh = Net(DECIDING[how])
    for other in (model, fresh):
        with torch.no_grad():
            other.gate.copy_(1 - other.gate)
            other.order.copy_(1 - other.order)
    try:
        found = sc.path_norm(model, X)
    except SecateursError:  # masks of floats may not be a graph at all
        return
    assert found != before and found == sc.path_norm(fresh, X)
    cert = sc.certify(model, pruned(model), box=BOX)
    assert cert.bound >= largest(model, pruned(model))
    if graph.decided:
        with pytest.raises(StructureMismatch, match="Capture the model again"):
            sc.path_norm(model, graph)


@pytest.mark.parametrize("how", DECIDING)
def test_two_networks_that_choose_otherwise_are_no_pair(how):
    one, two = Net(DECIDING[how]), Net(DECIDING[how])
    with torch.no_grad():
        two.gate.copy_(1 - two.gate)
        two.order.copy_(1 - two.order)
    try:
        cert = sc.certify(one, two, box=BOX)
    except CaptureError:
        return
    assert cert.bound >= largest(one, two)


@pytest.mark.parametrize("how", DECIDING)
def test_normalizing_asks_for_no_report(how):
    model = Net(DECIDING[how])
    with torch.no_grad():
        before = model(torch.ones(1, 3))
    weights = copy.deepcopy(model.state_dict())
    try:
        sc.normalize_(model, X)
    except SecateursError as error:
        assert "report" not in str(error)
        assert all(torch.equal(weights[k], v) for k, v in model.state_dict().items())
    assert torch.allclose(model(torch.ones(1, 3)), before, atol=1e-5)


MIXING = {
    "the mean": lambda s, h: h - h.mean(0),
    "the maximum": lambda s, h: h - 0.5 * h.amax(0),
    "the size": lambda s, h: h * len(h),
    "its shape": lambda s, h: h * h.shape[0] + h.shape[0] / 2,
    "a sum so far": lambda s, h: h.cumsum(0),
    "an order": lambda s, h: h.flip(0),
    "all in one": lambda s, h: h + h.reshape(-1)[:6].sum(),
    "without gradients": lambda s, h: h if torch.is_grad_enabled() else h * len(h),
}


@pytest.mark.parametrize("how", MIXING)
def test_a_certificate_of_samples_that_act_on_each_other_says_so(how):
    model = Net(MIXING[how])
    for _ in range(2):
        try:
            cert = sc.certify(model, pruned(model), box=BOX)
        except UnsupportedOperation:
            continue
        assert any("each input alone" in text for text in cert.assumptions)
        assert cert.bound >= largest(model, pruned(model)) - 1e-6
        assert any("each input alone" in t for t in sc.path_norm(model, X).assumptions)
    with pytest.raises(SecateursError):
        sc.normalize_(model, X)


@pytest.mark.parametrize("how", MIXING)
def test_no_size_of_a_batch_is_written_into_a_program(how):
    model = Net(MIXING[how])
    with torch.no_grad():
        model.a.weight[0] = 0
        model.a.bias[0] = 2
        model.a.weight[1] = 0
        model.a.bias[1] = 0
    with pytest.raises(SecateursError):
        c_source(model, X)
    for make in (
        lambda: sc.compact(model, X),
        lambda: sc.accelerate(model, X, tune="guess", keep="always"),
    ):
        try:
            made = make()
        except SecateursError:
            continue
        for batch in (1, 2, 3, 5):
            x = torch.randn(batch, 3)
            with torch.inference_mode():
                assert torch.allclose(made(x), model(x), atol=1e-5), batch


def test_most_models_assume_nothing_of_batches():
    model = Net()
    cert = sc.certify(model, pruned(model), box=BOX)
    assert not any("alone" in text for text in cert.assumptions)
    assert not sc.path_norm(model, X).assumptions


class Two(nn.Module):
    def __init__(self, named: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.named = nn.Linear(3, 2), nn.Linear(3, 4), named

    def forward(self, x):
        if self.named:
            return {"main": self.a(x), "aux": self.b(x)}
        return self.a(x), self.b(x)


@pytest.mark.parametrize(("named", "first", "second"), [(False, 0, 1), (True, "main", "aux")])
def test_the_output_that_is_certified_is_named_and_chosen(named, first, second):
    one, two = Two(named), Two(named)
    with torch.no_grad():
        two.b.weight.mul_(0.5)
    default = sc.certify(one, two, box=BOX)
    assert default.bound == 0
    assert any(repr(str(first)) in t and repr(str(second)) in t for t in default.assumptions)
    chosen = sc.certify(one, two, box=BOX, output=second)
    assert chosen.bound > 0.01 and len(chosen.per_output) == 4
    with pytest.raises(CaptureError, match="no output 'none'"):
        sc.certify(one, two, box=BOX, output="none")
    seen = sc.proof.statistical(one, two, data=torch.rand(30, 3), output=second)
    assert seen.largest > 0.01 and len(seen.per_output) == 4
    plain = sc.proof.statistical(one, two, data=torch.rand(30, 3))
    assert plain.largest == 0 and any(repr(str(second)) in text for text in plain.assumptions)
