"""A model is traced once; whatever changes what its `forward` does leads to a fresh trace."""

import contextlib
import copy
import importlib
import math

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import secateurs as sc
from secateurs.errors import SecateursError
from secateurs.graph import LOWERINGS, Graph
from secateurs.graph.export import call_of
from secateurs.graph.replay import COMPARED, REMEMBERED, replay_key

capturing = importlib.import_module("secateurs.graph.capture")
SLOPE = 0.25
X = torch.zeros(1, 3)


class Settings:
    """Plain data of a user's own class, which no look at attributes would open."""

    def __init__(self) -> None:
        self.values = {"shift": [1.0, 2.0]}


def outer() -> float:
    return 1.5


class Net(nn.Module):
    """Everything a forward pass may look at besides its parameters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.act = nn.LeakyReLU(0.1)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("index", torch.tensor([0, 1, 2, 3]))
        self.plain = torch.tensor([1.0, 2.0])
        self.order = ["a", "b"]
        self.settings = Settings()
        self.skip = True
        self.head = lambda x: 2.0 * x
        self.eval()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = x
        for name in self.order:
            h = self.act(getattr(self, name)(h))
        h = self.drop(self.norm(h))[:, self.index]
        if self.skip:
            h = h + F.leaky_relu(h, SLOPE) * outer()
        y = self.head(self.c(h)) * self.plain + self.settings.values["shift"][0]
        return y, 3 * y


@pytest.fixture
def traces(monkeypatch):
    """How often a model was traced, from a start without anything remembered."""
    forget()
    calls = []
    real = capturing.export
    monkeypatch.setattr(capturing, "export", lambda *a: calls.append(1) or real(*a))
    return calls


def forget() -> None:
    REMEMBERED.clear()
    COMPARED.clear()


def same(one: Graph, other: Graph, model: nn.Module) -> bool:
    """Whether two graphs have one structure and one set of numbers."""
    norms = [sc.log2_path_norm(model, graph) for graph in (one, other)]
    return one.describe() == other.describe() and norms[0] == norms[1]


@pytest.mark.parametrize("kind", [Net, lambda: nn.Sequential(nn.Linear(3, 2))])
def test_an_unchanged_model_is_traced_once(kind, traces):
    model = kind()
    first = sc.capture(model, X)
    assert same(sc.capture(model, torch.ones(5, 3)), first, model)
    assert len(traces) == 1


def test_weights_are_read_as_they_are_now(traces):
    model = Net()
    sc.path_norm(model, X)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-1.5)
        model.norm.running_var.mul_(3)
    found = sc.path_norm(model, X)
    forget()
    assert len(traces) == 1 and float(found) == float(sc.path_norm(model, X))


def test_a_twin_with_other_weights_needs_no_trace(traces):
    dense, sparse = Net(), copy.deepcopy(Net())
    sc.prune_(sparse, "magnitude", sparsity=0.5)
    sc.path_metric(dense, sparse, X)
    assert len(traces) == 1


def closure(model: Net) -> None:
    model.head = lambda x: 5.0 * x


def in_numpy(model: Net) -> None:
    model.plain.numpy()[1] = 7.0  # no version counter sees this


def tied(model: Net) -> None:
    model.b.weight = nn.Parameter(model.b.weight.detach().clone())
    model.a = nn.Linear(3, 4, bias=False)
    model.a.bias = model.b.bias


CHANGES = {
    "an attribute": lambda m: setattr(m, "skip", False),
    "a list": lambda m: m.order.pop(),
    "a list, one more": lambda m: m.order.append("b"),
    "plain data deep inside": lambda m: m.settings.values["shift"].insert(0, 9.0),
    "a closure": closure,
    "a literal of a module": lambda m: setattr(m.act, "negative_slope", 0.7),
    "an epsilon": lambda m: setattr(m.norm, "eps", 0.1),
    "a constant in place": lambda m: m.plain.mul_(2),
    "a constant behind the counter": lambda m: m.plain.data.fill_(4),
    "a constant through numpy": in_numpy,
    "an index": lambda m: m.index.copy_(torch.tensor([3, 2, 1, 0])),
    "a module": lambda m: setattr(m, "act", nn.ReLU()),
    "a tied bias": tied,
    "a shape": lambda m: setattr(m, "c", nn.Linear(4, 3)) or setattr(m, "plain", torch.ones(3)),
    "a missing bias": lambda m: setattr(m.b, "bias", None),
    "a hook": lambda m: m.b.register_forward_hook(lambda *a: -a[2]),
    "a hook before": lambda m: m.b.register_forward_pre_hook(lambda _, a: (a[0] * 2,)),
    "a forward": lambda m: setattr(m.act, "forward", lambda x: x.relu()),
    "a parametrization": lambda m: nn.utils.parametrizations.weight_norm(m.b),
    "the precision": lambda m: m.double() and setattr(m, "plain", m.plain.double()),
    "a name": lambda m: m.add_module("z", m.b) or m.order.__setitem__(1, "z"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_seen(what, traces):
    model = Net()
    sc.capture(model, X)
    CHANGES[what](model)
    found = sc.capture(model, X)
    assert len(traces) == 2, "the graph of before was given"
    forget()
    assert same(found, sc.capture(model, X), model)


OUTSIDE = {
    "a global": lambda patch: patch.setitem(globals(), "SLOPE", 0.5),
    "a function": lambda patch: patch.setitem(globals(), "outer", lambda: 4.0),
    "torch itself": lambda patch: patch.setattr(F, "leaky_relu", lambda x, *_: x.relu()),
    "the class": lambda patch: patch.setattr(nn.LeakyReLU, "forward", lambda _, x: x.relu()),
}


@pytest.mark.parametrize("what", OUTSIDE)
def test_a_change_outside_of_the_model_is_seen(what, traces, monkeypatch):
    model = Net()
    sc.capture(model, X)
    OUTSIDE[what](monkeypatch)
    found = sc.capture(model, X)
    assert len(traces) == 2
    forget()
    assert same(found, sc.capture(model, X), model)


def test_another_output_mode_or_shape_is_traced(traces):
    model = Net()
    sc.capture(model, X)
    sc.capture(model, X, output=1)
    assert len(traces) == 2
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
    sc.capture(net, torch.zeros(1, 1, 5, 5))
    sc.capture(net, torch.zeros(1, 1, 6, 6))
    assert len(traces) == 4
    with pytest.raises(SecateursError):  # dropout and batch statistics are not graph
        sc.capture(model.train(), X)


def test_a_rule_registered_since_then_reads_again(traces, monkeypatch):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    sc.capture(model, X)
    key = torch.ops.aten.relu.default
    monkeypatch.setitem(LOWERINGS._rules, key, _relu(key))
    sc.capture(model, X)
    assert len(traces) == 2


def _relu(key):
    rule = LOWERINGS[key]
    return lambda build, *args: rule(build, *args)


def test_what_a_caller_does_to_a_graph_stays_his(traces):
    model = Net()
    for _ in range(2):
        graph = sc.capture(model, X)
        for constant in graph.constants.values():
            constant.zero_()
        graph.constants.clear()
        graph.parameters.clear()
    found = sc.capture(model, X)
    assert len(traces) == 1
    forget()
    assert same(found, sc.capture(model, X), model)


class Counting(nn.Module):
    """Another answer in every call."""

    def __init__(self, period: int) -> None:
        super().__init__()
        self.fc, self.calls, self.period = nn.Linear(3, 2), 0, period

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.fc(x) * float(1 + self.calls % self.period)


@pytest.mark.parametrize("period", [3, 5, 10**6])
def test_a_model_that_changes_itself_is_never_remembered(period, traces):
    model = Counting(period)
    for number in range(3):
        with contextlib.suppress(SecateursError):  # found out by the comparison
            sc.capture(model, X)
        assert len(traces) == number + 1


def test_a_model_that_asks_for_a_value_has_no_key():
    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) * float(self.fc.weight.sum())

    model = Asks()
    assert replay_key(model, call_of(X, model), None) is None


def test_weights_kept_behind_the_back_of_the_model_are_read(traces):
    """A parameter in a plain list is not a parameter: its values are constants of the code."""

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.extra = nn.Linear(3, 2), [nn.Linear(2, 2)]

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(self.fc(x), self.extra[0].weight.detach())

    model = Hidden()
    sc.capture(model, X)
    model.extra[0].weight.data.mul_(2)
    norm = sc.log2_path_norm(model, sc.capture(model, X))
    forget()
    assert len(traces) == 2 and norm == sc.log2_path_norm(model, X)
    assert math.isfinite(norm)


def test_nothing_is_left_behind():
    """Neither hooks nor state nor the generator's place."""
    model = Net()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    key = replay_key(model, call_of(X, model), None)
    assert key and torch.equal(state, torch.get_rng_state())
    assert not nn.modules.module._global_forward_hooks
    assert not nn.modules.module._global_forward_pre_hooks
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert torch.equal(model.plain, torch.tensor([1.0, 2.0]))


def test_features_kept_on_the_model_are_those_of_before(traces):
    """Many models keep their last activation; a tensor without values must not take its place."""

    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.last = nn.Linear(3, 2), None

        def forward(self, x: Tensor) -> Tensor:
            self.last = self.made_here = self.fc(x)
            return self.last

    model = Keeping()
    for _ in range(2):
        sc.capture(model, X)
        assert model.last is None and not hasattr(model, "made_here")
    model(X)
    kept = model.last
    sc.capture(model, X)
    assert model.last is kept and model.made_here is kept and len(traces) == 1


@pytest.mark.parametrize("size", ["number", "shape"])
def test_what_only_values_decide_has_no_key(size):
    """A size or a number that is open without values could be another one at the next call."""

    class Open(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if size == "number":
                return x * x.sum().item()
            return x[x > 0].sum()[None]

    assert replay_key(Open(), call_of(torch.ones(1, 3), Open()), None) is None


def test_a_trace_reuses_what_the_record_before_it_found():
    """torch's table of operators without values is shared: the same settings."""
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Hardswish(), nn.Conv2d(5, 7, 2), nn.Flatten(1))
    call = call_of(torch.zeros(1, 3, 11, 13), model)
    FakeTensorMode.cache_clear()
    assert replay_key(model, call, None) is not None
    hits = FakeTensorMode.cache_info().hits
    with torch.no_grad():
        torch.export.export(model, call.args, strict=False)
    assert FakeTensorMode.cache_info().hits - hits >= 3
