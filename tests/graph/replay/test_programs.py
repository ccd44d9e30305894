"""Every model is compared with its own graph, once in each of its states."""

import copy
import importlib

import pytest
import torch
from torch import Tensor, nn

import secateurs as sc
from secateurs.errors import CaptureError
from secateurs.graph import LOWERINGS
from secateurs.graph.replay import COMPARED, REMEMBERED, Compared, Seen, rules

capturing = importlib.import_module("secateurs.graph.capture")


class Net(nn.Module):
    """One network with everything that a key has to see."""

    def __init__(self, *, alpha: float = 2.0, index: tuple[int, ...] = (0, 1)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(3, 4), nn.Linear(2, 2)
        self.alpha = alpha
        self.register_buffer("index", torch.tensor(index))
        self.plain = torch.tensor([1.0, 2.0])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.relu(self.a(x))[:, self.index]
        y = torch.add(h, self.b(h), alpha=self.alpha) * self.plain
        return y, 2 * y


@pytest.fixture
def counted(monkeypatch):
    """How often a graph was compared."""
    COMPARED.clear()
    REMEMBERED.clear()
    calls = []
    real = capturing.compare
    monkeypatch.setattr(capturing, "compare", lambda *args: calls.append(1) or real(*args))
    return calls


X = torch.zeros(1, 3)


def test_a_model_is_compared_once(counted):
    model = Net()
    sc.capture(model, X)
    for parameter in model.parameters():
        parameter.data *= -0.5
    sc.capture(model, torch.ones(7, 3))
    assert len(counted) == 1


def test_another_model_of_the_same_program_is_compared_for_itself(counted):
    sc.capture(model := Net(), X)
    sc.capture(copy.deepcopy(model), X)
    assert len(counted) == 2


def test_what_we_copied_is_compared_with_its_original(counted):
    sc.capture(model := Net(), X)
    COMPARED.share(ours := copy.deepcopy(model), model)
    sc.capture(ours, X)
    assert len(counted) == 1
    ours.alpha = 3.0
    sc.capture(ours, X)
    assert len(counted) == 2


@pytest.mark.parametrize("change", [{"flag": True}, {"kept": [1, 2]}])
def test_an_attribute_that_no_tracer_sees_is_compared_again(change, counted):
    sc.capture(model := Net(), X)
    vars(model).update(change)
    sc.capture(model, X)
    assert len(counted) == 2


def other_plain() -> nn.Module:
    model = Net()
    model.plain = torch.tensor([1.0, 3.0])
    return model


DIFFERENT = {
    "a literal": lambda: (Net(alpha=5.0), X, None),
    "an index in a buffer": lambda: (Net(index=(2, 3)), X, None),
    "a constant": lambda: (other_plain(), X, None),
    "the precision": lambda: (Net().double(), X, None),
    "the output": lambda: (Net(), X, 1),
    "training": lambda: (Net().eval(), X, None),
    "the shape": lambda: (nn.Sequential(nn.Linear(3, 2)), torch.zeros(1, 5, 3), None),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_whatever_else_differs_is_compared_again(what, counted):
    sc.capture(Net(), X)
    sc.capture(nn.Sequential(nn.Linear(3, 2)), X)
    model, x, output = DIFFERENT[what]()
    sc.capture(model, x, output=output)
    assert len(counted) == 3


def test_a_rule_registered_since_then_is_compared_again(counted, monkeypatch):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    sc.capture(model, X)
    key = torch.ops.aten.relu.default
    wrong = lambda build, x: build.affine(x, weight=None, bias=None)  # noqa: E731
    monkeypatch.setitem(LOWERINGS._rules, key, wrong)
    with pytest.raises(CaptureError):
        sc.capture(model, X)


def test_a_comparison_that_could_not_see_anything_does_not_count(counted):
    """Zero weights, and neurons that are off, hide a wrong graph: the next model is compared."""
    silent = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    nn.init.zeros_(silent[2].weight)
    sc.capture(silent, X)
    nn.init.ones_(silent[2].weight)
    before = silent[0].bias.detach().clone()
    nn.init.constant_(silent[0].bias, -1e6)
    for _ in range(2):  # nothing to see, and nothing that changed
        sc.capture(silent, X)
    assert len(counted) == 2
    with torch.no_grad():
        silent[0].bias.copy_(before)
    for _ in range(2):
        sc.capture(silent, X)
    assert len(counted) == 3


def test_the_oldest_go():
    compared, model = Compared(), nn.Linear(1, 1)
    for number in range(300):
        compared.remember(model, str(number), Seen(unseen=frozenset(), alone=""))
    assert compared.seen(model, "299") and compared.seen(model, "44")
    assert compared.seen(model, "43") is None


def test_a_rule_that_is_gone_is_not_taken_for_the_next_one(monkeypatch):
    """A new function often gets the memory of the last one, and with it the same identity."""
    key = torch.ops.aten.relu.default
    seen = set()
    for _ in range(20):
        monkeypatch.setitem(LOWERINGS._rules, key, lambda *args: None)
        seen.add(rules())
        monkeypatch.undo()
    assert len(seen) == 20
