"""A graph that does not compute what its model computes is refused, in whatever precision it is
looked at.
"""

import copy
import importlib
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import secateurs as sc
from secateurs.errors import CaptureError
from secateurs.graph.export import call_of
from secateurs.graph.primitives import Opaque
from secateurs.graph.propagate import propagate

checking = importlib.import_module("secateurs.graph.spot_check")
LARGE = torch.zeros(1, 3, 40, 40)  # 4,800 numbers: one point, single precision first
SMALL = torch.zeros(1, 3, 8, 8)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.conv(x)))
        return self.head(y.mean((2, 3)))


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    return Net().to(dtype).eval()


def spot_check(model, call, graph):
    """The parameters of which nothing was seen, or None where nothing was."""
    return checking._check_points(model, checking._points(call), checking._Expected(model, graph))


def checked(model: nn.Module, example: Tensor, *, of: nn.Module | None = None):
    """The check of the model with the graph of another."""
    graph = sc.capture(of or model, example)
    return spot_check(model, call_of(example, model), graph)


@pytest.fixture
def thorough(monkeypatch):
    """How often double precision, or the model's own, had to decide."""
    calls, real = [], checking._thorough
    monkeypatch.setattr(
        checking,
        "_thorough",
        lambda *args, **kwargs: calls.append(1) or real(*args, **kwargs),
    )
    return calls


@pytest.mark.parametrize("example", [SMALL, LARGE])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_its_own_graph_passes(dtype, example):
    assert checked(net(dtype), example) is not None


@pytest.mark.parametrize("example", [SMALL, LARGE])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_graph_of_something_else_is_refused(dtype, example):
    other = net(dtype)
    other.norm.eps = 0.1
    with pytest.raises(CaptureError, match="does not compute"):
        checked(net(dtype), example, of=other)


def test_large_inputs_of_double_models_take_single_precision(thorough):
    model = net(torch.float64)
    graph = sc.capture(model, LARGE)
    thorough.clear()
    assert spot_check(model, call_of(LARGE, model), graph) is not None
    assert not thorough


@pytest.mark.parametrize("share", [1e-4, 1e-3])
def test_what_single_precision_cannot_tell_is_decided_in_double(share, thorough):
    other = net(torch.float64)
    other.norm.eps = 1e-5 + 2 * share  # moves every value by this share
    with pytest.raises(CaptureError, match="does not compute"):
        checked(net(torch.float64), LARGE, of=other)
    assert thorough


def test_weights_beyond_single_precision_are_compared_in_double(thorough):
    def scaled(eps: float) -> nn.Module:
        model = net(torch.float64)
        model.head.weight.data *= 1e60
        model.head.bias.data *= 1e60
        model.norm.eps = eps
        return model

    assert checked(scaled(1e-5), LARGE) is not None
    assert thorough
    with pytest.raises(CaptureError, match="does not compute"):
        checked(scaled(1e-5), LARGE, of=scaled(1e-3))


class Stubborn(Net):
    """Its code wants double precision."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float64:
            raise RuntimeError("only float64")
        return super().forward(x)


def test_a_model_that_refuses_single_precision_is_compared_in_its_own(thorough):
    model = Stubborn().double().eval()
    assert checked(model, LARGE.double()) is not None
    assert thorough
    other = copy.deepcopy(model)
    other.norm.eps = 1e-4
    with pytest.raises(CaptureError, match="does not compute"):
        checked(model, LARGE.double(), of=other)


class Counting(Net):
    """Writes into a buffer and, as an embedding with `max_norm` does, into a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.seen += 1
        self.head.weight.detach().mul_(0.5)
        return y


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_the_model_writes_stays_out_of_it(dtype, mixed):
    model, graph = Counting().to(dtype).eval(), sc.capture(net(dtype), LARGE)
    if mixed:  # then a weight of single precision is cast to its own
        model.unused = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    before = copy.deepcopy(model.state_dict())
    spot_check(model, call_of(LARGE, model), graph)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_infinity_is_no_small_share_of_infinity():
    """The graph overflows where the model does not."""
    model, other = net(), net()
    other.head.weight.data.fill_(3e38)
    other.norm.weight.data.fill_(1e3)
    call, graph = call_of(LARGE, model), sc.capture(model, LARGE)
    expected = checking._Expected(other, graph)
    with torch.no_grad(), pytest.raises(CaptureError, match="differ by inf"):
        checking._compare(model, call, expected, torch.float32)


def test_parameters_of_zeros_are_told():
    model = net(torch.float64)
    model.head.bias.data.zero_()
    model.norm.weight.data[0] = 0
    assert checked(model, LARGE) == {"head.bias", "norm.bias"}


@pytest.mark.parametrize("example", [SMALL, LARGE])
def test_a_graph_answers_each_input_once(example, monkeypatch):
    """Alone, in a batch, with gradients and without: the model is compared with one answer."""
    answered = []

    def counted(graph, flow, inputs, state):
        answered.append(tuple(inputs[0].shape))
        return propagate(graph, flow, inputs, state)

    monkeypatch.setattr(checking, "propagate", counted)
    sc.capture(net(), example)
    assert len(answered) == 2


@torch.no_grad()
def test_tensors_that_a_run_may_write_into_are_made_anew_for_the_graph():
    model = net(torch.float64)
    expected = checking._Expected(model, sc.capture(model, LARGE))
    before = expected.state(torch.float32)
    assert checking._quick(model, checking._points(call_of(LARGE, model))[0], expected) is not None
    assert expected.state(torch.float32) is not before


class Places(nn.Module):
    """A grid of positions made in float32, as detectors add it, through a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.place = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(2, 8, 1)
        self.mix, self.head = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = (torch.linspace(0, 1, n, dtype=torch.float32) for n in x.shape[-2:])
        grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij"))[None]
        return self.head(torch.relu(self.mix(torch.relu(self.conv(x) + self.place(grid)))))


class Tones(nn.Module):
    """A recurrent layer: beyond some length torch traces a kernel that takes float32 alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn = nn.LSTM(5, 8, 2, batch_first=True)
        self.mix, self.head = nn.Linear(8, 32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        _, (h, _) = self.rnn(x)
        return self.head(torch.relu(self.mix(h[-1])))


OWN_PRECISION = {
    "a grid in float32": (Places, torch.zeros(1, 3, 16, 16)),
    "the same, large": (Places, torch.zeros(1, 3, 40, 40)),
    "a long recurrence": (Tones, torch.zeros(1, 160, 5)),
}


@pytest.mark.parametrize("how", OWN_PRECISION)
def test_what_does_not_run_in_double_is_compared_in_its_own_precision(how):
    make, example = OWN_PRECISION[how]
    model = make().eval()
    graph = sc.graph.capture(model, example, opaque=True)
    call = call_of(example, model)
    assert spot_check(model, call, graph) is not None
    other = copy.deepcopy(model)
    other.mix.bias.data += 0.1
    # What the graph reads is another model's.
    with pytest.raises(CaptureError, match="does not compute"):
        checking._check_points(model, checking._points(call), _Foreign(model, graph, other))


class _Foreign(checking._Expected):
    """What the graph answers with the weights of another model."""

    def __init__(self, model, graph, other) -> None:
        super().__init__(model, graph)
        self.other = other

    def state(self, dtype):
        return self.graph.state(self.other, dtype=dtype)

    def release(self, dtype):
        return self.state(dtype)


def test_a_graph_that_runs_in_no_precision_is_refused_in_words():
    model = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2)).eval()
    graph = sc.graph.capture(model, torch.zeros(1, 3), opaque=True)
    nodes = [
        replace(node, function=_no_kernel) if isinstance(node, Opaque) else node
        for node in graph.nodes
    ]
    with pytest.raises(CaptureError, match="does not run on a random input.*no kernel"):
        spot_check(model, call_of(torch.zeros(1, 3), model), replace(graph, nodes=tuple(nodes)))


def _no_kernel(x: Tensor) -> Tensor:
    raise RuntimeError("no kernel for this dtype")
