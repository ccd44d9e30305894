"""Functions that rewrite a model keep its function, whatever is tied; else they take it back."""

import copy

import pytest
import torch
from torch import Tensor, nn

import secateurs as sc
from secateurs.base.random import generator as seeded
from secateurs.errors import TheoryError, UnsupportedOperation
from secateurs.proof import normalize_, remove_dead_, rescale_random_
from secateurs.proof.scaling import unchanged

WIDTH = 5


class Net(nn.Module):
    """Five layers of one width, with ties and zeros drawn at random."""

    def __init__(self, g: torch.Generator) -> None:
        super().__init__()

        def chance(share: float) -> bool:
            return float(torch.rand((), generator=g)) < share

        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.extra = nn.Parameter(torch.empty(WIDTH))
        self.head = nn.Linear(WIDTH, 2)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=g)
        for layer in self.layers:
            dead = torch.rand(WIDTH, generator=g) < 0.4
            layer.weight.data[dead] = 0
            layer.weight.data[:, torch.rand(WIDTH, generator=g) < 0.3] = 0
        if chance(0.4):
            self.layers[2].weight = self.layers[1].weight
        if chance(0.4):
            self.layers[3].bias = self.layers[1].bias
        if chance(0.3):
            self.layers[2].bias = self.extra
        self.twice, self.adds, self.skips = chance(0.4), chance(0.5), chance(0.4)

    def forward(self, x: Tensor) -> Tensor:
        first = torch.relu(self.layers[0](x))
        y = torch.relu(self.layers[1](first))
        if self.twice:
            y = torch.relu(self.layers[1](y))
        y = self.layers[2](y)
        y = torch.relu(y + self.extra if self.adds else y)
        y = torch.relu(self.layers[3](y) + (first if self.skips else 0.0))
        return self.head(y)


def moved(change, seed: int, dtype: torch.dtype) -> float:
    model = Net(seeded(seed, "ties")).to(dtype).eval()
    x = torch.randn(16, WIDTH, generator=seeded(seed, "inputs"), dtype=torch.float64)
    with torch.no_grad():
        before = copy.deepcopy(model).double()(x)
        change(model, torch.zeros(1, WIDTH))
        return float((model.double()(x) - before).abs().max() / (before.abs().max() + 1e-12))


def rescaled(model: nn.Module, x: Tensor) -> None:
    rescale_random_(model, x, generator=seeded(0, "factors"))


CHANGES = {
    "normalize_": normalize_,
    "remove_dead_": remove_dead_,
    "rescale_random_": rescaled,
}


@pytest.mark.parametrize("name", CHANGES)
def test_random_ties_never_move_the_function(name):
    assert max(moved(CHANGES[name], seed, torch.float64) for seed in range(6)) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_random_ties_never_move_the_function_of_300_networks(name):
    assert max(moved(CHANGES[name], seed, torch.float64) for seed in range(300)) < 1e-9


class OwnBias(nn.Module):
    """relu(l(x) + b), b a parameter of its own, and a zero row in l."""

    def __init__(self) -> None:
        super().__init__()
        self.l, self.head = nn.Linear(3, 4, bias=False), nn.Linear(4, 2)
        self.b = nn.Parameter(torch.ones(4))
        self.l.weight.data[1] = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.l(x) + self.b))


def test_a_bias_of_its_own_keeps_a_zero_row_alive():
    model = OwnBias().double()
    x = torch.randn(8, 3, dtype=torch.float64)
    before = model(x).detach()
    normalize_(model, x[:1])
    assert torch.allclose(model(x), before, rtol=1e-12, atol=1e-12)
    rows = model.l.weight.abs().sum(1) + model.b.abs()
    assert torch.allclose(rows, torch.ones(4, dtype=torch.float64))


class TwoHeads(nn.Module):
    """Only the first head is captured; the second reads the same hidden channels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.l, self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 2)
        self.a.weight.data[:, 2] = 0  # unused by the first head, read by the second

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.relu(self.l(x))
        return self.a(h), self.b(h)


@pytest.mark.parametrize("name", CHANGES)
def test_all_outputs_stay(name):
    """The whole network is looked at: the other head reads what this one does not."""
    model = TwoHeads().double()
    x = torch.randn(64, 3, dtype=torch.float64)
    model.b.weight.data[:, 1] = 0
    model.a.weight.data[:, 1] = 0  # unused by both
    before = model(x)
    done = CHANGES[name](model, x[:1])
    for one, two in zip(before, model(x), strict=True):
        assert torch.allclose(one, two, rtol=1e-12, atol=1e-12)
    if name == "remove_dead_":
        assert next((each.name, each.unused) for each in done.layers) == (
            "l.weight",
            (1,),
        )
        assert model.l.weight[1].eq(0).all() and model.l.weight[2].ne(0).all()


class Rare(nn.Module):
    """The second output reads a hidden channel, but so rarely that random inputs never show it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.l, self.a = nn.Linear(3, 4), nn.Linear(4, 2)
        self.a.weight.data[:, 2] = 0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.relu(self.l(x))
        return self.a(h), torch.relu(h[:, 2] - 1e3)


@pytest.mark.parametrize("name", CHANGES)
def test_what_random_inputs_do_not_show_stays(name):
    """Proved on the graph, not only compared: at large inputs the second output is alive."""
    model = Rare().double()
    x = 1e5 * torch.randn(64, 3, dtype=torch.float64)
    before = model(x)
    assert bool(before[1].any())
    CHANGES[name](model, x[:1])
    for one, two in zip(before, model(x), strict=True):
        assert torch.allclose(one, two, rtol=1e-9, atol=0)


class Reads(nn.Module):
    """The same weight is returned, or read by an operator that no graph covers."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.l, self.a, self.how = nn.Linear(3, 4), nn.Linear(4, 2), how
        self.a.weight.data[:, 2] = 0
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor):
        h = torch.relu(self.l(x))
        if self.how == "weight":
            return self.a(h), self.l.weight
        if self.how == "sine":
            return {"logits": self.a(h), "wave": torch.sin(h)}
        if self.how == "index":
            return self.a(h), h.argmax(1)
        self.seen.add_(h[0].detach())
        return self.a(h)


def test_a_weight_that_is_returned_stays():
    model = Reads("weight").double()
    before = copy.deepcopy(model.l.weight)
    remove_dead_(model, torch.zeros(1, 3))
    assert torch.equal(model.l.weight, before)


@pytest.mark.parametrize("how", ["sine", "index", "buffer"])
@pytest.mark.parametrize("name", CHANGES)
def test_what_cannot_be_read_is_refused_and_nothing_changes(name, how):
    model = Reads(how).double()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(UnsupportedOperation, match=f"^{name} must"):
        CHANGES[name](model, torch.zeros(1, 3))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_any_error_on_the_way_puts_everything_back():
    model, x = OwnBias(), torch.zeros(1, 3)
    graph = sc.capture(model, x)
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        with pytest.raises(KeyError), unchanged(model, x, graph, "a change"):
            model.b.add_(1)
            raise KeyError
        with (
            pytest.raises(TheoryError, match="a change would move"),
            unchanged(model, x, graph, "a change"),
        ):
            model.b.add_(1)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_a_dead_flag_on_a_shared_weight_says_so():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(3, 1))
    layers = sc.liveness(model, torch.zeros(1, 3)).layers
    assert [layer.shared for layer in layers] == [True, True, False]
