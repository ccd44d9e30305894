"""Costs of one backward pass against zeroing every weight; shares; depth; repeated parameters."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune

import secateurs as sc
from paths.nets import TINY, tiny
from secateurs.errors import ArgumentError


def brute_force(model: nn.Module, graph, q: float = 1) -> dict[str, torch.Tensor]:
    """‖Φ‖_q^q − ‖Φ with θ_i = 0‖_q^q, one forward pass per parameter."""
    whole = float(sc.path_norm(model, graph, q=q)) ** q
    costs = {}
    for name, parameter in model.named_parameters():
        flat, cost = (
            parameter.data.view(-1),
            torch.zeros(parameter.numel(), dtype=torch.float64),
        )
        for i in range(flat.numel()):
            old = float(flat[i])
            flat[i] = 0
            cost[i] = whole - float(sc.path_norm(model, graph, q=q)) ** q
            flat[i] = old
        costs[name] = cost.view(parameter.shape)
    return costs


@pytest.mark.parametrize("q", [1, 2])
@pytest.mark.parametrize("name", TINY)
def test_every_cost_is_the_zeroing_difference(name, q):
    model, x = tiny(name)
    graph = sc.capture(model, x)
    costs, truth = sc.path_costs(model, graph, q=q), brute_force(model, graph, q)
    whole = float(sc.path_norm(model, graph, q=q)) ** q
    assert set(costs) == set(truth) and costs.exponent == 0
    for key in truth:
        assert float((costs[key] - truth[key]).abs().max()) <= 1e-12 * whole, key
    assert costs.upper_bounds == costs.first_order == ()


@pytest.mark.parametrize("name", TINY)
def test_shares_are_in_the_unit_interval_and_sum_to_the_layer(name):
    model, x = tiny(name)
    shares = sc.path_costs(model, x, relative=True)
    assert all(float(v.min()) >= 0 and float(v.max()) <= 1 + 1e-12 for v in shares.values())
    # Every path crosses the last layer: weights and biases make a cut.
    if name == "mlp":
        assert float(shares["4.weight"].sum() + shares["4.bias"].sum()) == pytest.approx(
            1, rel=1e-12
        )


def test_frozen_value():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    for i, parameter in enumerate(model.parameters()):
        parameter.data = (torch.arange(parameter.numel()).reshape(parameter.shape) - 1.0) / (i + 1)
    costs = sc.path_costs(model, torch.zeros(1, 2))
    assert torch.allclose(
        costs["0.weight"],
        torch.tensor([[1 / 3, 0.0], [0.0, 0.0]], dtype=torch.float64),
        atol=1e-7,
    )
    assert float(costs["2.bias"]) == pytest.approx(0.25) and costs[
        "0.bias"
    ].tolist() == pytest.approx([1 / 6, 0.0])


def test_on_a_linear_net_it_is_synflow():
    model = nn.Sequential(nn.Linear(4, 5, bias=False), nn.Linear(5, 3, bias=False)).double()
    first, second = (p.detach().abs().requires_grad_() for p in model.parameters())
    F.linear(F.linear(torch.ones(1, 4, dtype=torch.float64), first), second).sum().backward()
    costs = sc.path_costs(model, torch.zeros(1, 4))
    assert torch.allclose(costs["0.weight"], first * first.grad) and torch.allclose(
        costs["1.weight"], second * second.grad
    )


class Twice(nn.Module):
    def __init__(self, *, parallel: bool) -> None:
        super().__init__()
        self.shared, self.parallel = nn.Linear(3, 3), parallel

    def forward(self, x):
        if self.parallel:
            return torch.relu(self.shared(x)) + torch.relu(self.shared(-x))
        return self.shared(torch.relu(self.shared(x)))


def test_a_parameter_twice_on_a_path_is_marked_and_bounded():
    model = Twice(parallel=False).double()
    graph = sc.capture(model, torch.zeros(1, 3))
    costs, truth = sc.path_costs(model, graph), brute_force(model, graph)
    assert costs.upper_bounds == ("shared.weight", "shared.bias")
    assert bool((costs["shared.weight"] >= truth["shared.weight"] - 1e-12).all())
    assert bool((costs["shared.weight"] > truth["shared.weight"] + 1e-9).any())


def test_a_parameter_in_two_parallel_branches_is_exact():
    model = Twice(parallel=True).double()
    graph = sc.capture(model, torch.zeros(1, 3))
    costs, truth = sc.path_costs(model, graph), brute_force(model, graph)
    assert costs.upper_bounds == ()
    assert all(torch.allclose(costs[k], truth[k], rtol=1e-12, atol=1e-12) for k in truth)


def test_masked_weights_are_exact_and_weight_norm_is_marked():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    prune.random_unstructured(model[0], "weight", amount=4)
    graph = sc.capture(model, torch.zeros(1, 3))
    costs, truth = sc.path_costs(model, graph), brute_force(model, graph)
    assert (
        torch.allclose(costs["0.weight_orig"], truth["0.weight_orig"], rtol=1e-12)
        and costs.first_order == ()
    )
    normed = nn.Sequential(
        torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), nn.Linear(3, 1)
    )
    marked = sc.path_costs(normed, torch.zeros(1, 3)).first_order
    assert "0.parametrizations.weight.original1" in marked and "1.weight" not in marked


def test_parameters_the_output_does_not_use_cost_nothing():
    class Headed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.unused, self.aux = (
                nn.Linear(3, 2),
                nn.Linear(3, 2),
                nn.Linear(2, 2),
            )

        def forward(self, x):
            y = self.body(x)
            return {"logits": y, "aux": self.aux(torch.sigmoid(y))}

    costs = sc.path_costs(Headed(), torch.zeros(1, 3))
    assert (
        not costs["unused.weight"].any()
        and not costs["aux.weight"].any()
        and costs["body.weight"].all()
    )


class Deep(nn.Module):
    def __init__(self, depth: int, gain: float, *, skip: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(depth))
        self.skip = skip
        for layer in self.layers:
            nn.init.normal_(layer.weight, std=gain)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x)) + (x if self.skip else 0.0)
        return x


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize(
    ("depth", "gain"),
    [
        *((200, gain) for gain in (1e-30, 1e-3, 20.0, 1e30)),
        pytest.param(1000, 20.0, marks=pytest.mark.slow),
    ],
)
def test_depth_never_overflows(depth, gain, skip):
    model = Deep(depth, gain, skip=skip)
    graph = sc.capture(model, torch.zeros(1, 4))
    log2 = sc.log2_path_norm(model, graph)
    shares = sc.path_costs(model, graph, relative=True)
    assert torch.isfinite(torch.tensor(log2))
    assert gain < 1 or log2 > 1024
    assert all(float(v.min()) >= 0 and float(v.max()) <= 1 + 1e-9 for v in shares.values())
    last = f"layers.{depth - 1}"
    cut = float(shares[f"{last}.weight"].sum() + shares[f"{last}.bias"].sum())
    assert cut <= 1 + 1e-9 and (skip or cut == pytest.approx(1, rel=1e-9))
    costs = sc.path_costs(model, graph)
    assert costs.exponent == 0 or costs.exponent > 500
    assert all(bool(torch.isfinite(v).all()) for v in costs.values())


def test_scales_beyond_float32():
    model = nn.Sequential(
        nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False)
    ).double()
    reference = sc.path_costs(model, torch.zeros(1, 2), relative=True)
    log2 = sc.log2_path_norm(model, torch.zeros(1, 2), q=20)
    model[0].weight.data *= 2.0**-900
    model[2].weight.data *= 2.0**1000
    moved = sc.path_costs(model, torch.zeros(1, 2), relative=True)
    assert all(torch.allclose(moved[k], reference[k], rtol=1e-12) for k in moved)
    assert sc.log2_path_norm(model, torch.zeros(1, 2), q=20) == pytest.approx(log2 + 100, rel=1e-12)


def test_nothing_of_the_model_changes():
    model, x = tiny("residual")
    model.stem.weight.grad = torch.ones_like(model.stem.weight)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    rng = torch.get_rng_state()
    sc.path_costs(model, x)
    sc.path_norm(model, x)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert bool((model.stem.weight.grad == 1).all()) and model.head.weight.grad is None
    assert torch.equal(rng, torch.get_rng_state()) and not model.training


@pytest.mark.parametrize("q", [0.5, 0, -1, float("nan"), float("inf")])
def test_q_out_of_range(q):
    for analysis in (sc.path_norm, sc.path_costs):
        with pytest.raises(ArgumentError, match=r"not in \[1, ∞\)"):
            analysis(nn.Linear(2, 2), torch.zeros(1, 2), q=q)


class Shifted(nn.Module):
    """A bias added to what others read, too: the sum must not lie in its memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)
        self.shift = nn.Parameter(torch.tensor([0.5, 0.0, 2.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.last(y + self.shift) + self.last(torch.relu(y))


def test_a_bias_beside_another_reader_is_added_apart():
    torch.manual_seed(0)
    model = Shifted().double()
    costs = sc.path_costs(model, torch.zeros(1, 3))
    norm = 2.0**costs.log2_norm
    with torch.no_grad():
        first = model.first.weight.abs().sum(1) + model.first.bias.abs()
        last = model.last.weight.abs()
        expected = (last @ (2 * first + model.shift.abs())).sum()
        expected += 2 * model.last.bias.abs().sum()
    assert norm == pytest.approx(float(expected), rel=1e-12)
    assert torch.allclose(costs["shift"], (last.sum(0) * model.shift.abs()).detach())
