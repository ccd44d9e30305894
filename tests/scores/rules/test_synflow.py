"""SynFlow by hand, as a derivative of the flow, and where single precision gives up."""

import copy
import itertools
import math

import pytest
import torch
from scipy.stats import kstest
from torch import nn

import secateurs as sc
from scores.oracles import NAMES, batch, small
from scores.two_layers import X, check, two_layers
from secateurs.errors import ScoreError
from secateurs.scores.rules import synflow
from secateurs.scores.rules.synflow import chi


def deep(
    depth: int,
    width: int = 16,
    scale: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [m for _ in range(depth) for m in (nn.Linear(width, width, bias=False), nn.ReLU())]
    net = nn.Sequential(*layers).to(dtype)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_().mul_(scale * (2 / width) ** 0.5)
    return net


def log_flow(net: nn.Module, width: int) -> float:
    """log₂ R, rescaling by hand after every layer."""
    x, exponent = torch.ones(width, dtype=torch.float64), 0.0
    for parameter in net.parameters():
        x = parameter.detach().double().abs() @ x
        exponent += float(x.sum().log2())
        x = x / x.sum()
    return exponent


@pytest.mark.parametrize("scale", [1.0, 1e-2])
def test_150_layers_are_finite_and_in_proportion(scale):
    net = deep(150, scale=scale)
    assert abs(log_flow(net, 16)) > 130  # beyond float32 (2^±128)
    scores = sc.score(net, "synflow", example=torch.zeros(1, 16))
    for name, tensor in scores.items():
        assert tensor.dtype == torch.float32 and torch.isfinite(tensor).all()
        # Every layer holds all of R, divided by R.
        assert float(tensor.sum()) == pytest.approx(1, rel=1e-4), name


def test_the_exact_scores_stay_exact_where_they_fit_in_double_precision():
    net = deep(25)
    single = sc.score(net, "synflow", example=torch.zeros(1, 16))
    double = sc.score(
        copy.deepcopy(net).double(),
        "synflow",
        example=torch.zeros(1, 16, dtype=torch.float64),
    )
    for name in single:
        torch.testing.assert_close(single[name].double(), double[name], rtol=1e-4, atol=0)


def test_the_double_route_gives_what_single_precision_gives(monkeypatch):
    net, example = deep(5), torch.zeros(1, 16)
    plain = sc.score(net, "synflow", example=example)
    monkeypatch.setattr(synflow, "_single_flow", lambda task, inputs: None)
    for name, tensor in sc.score(net, "synflow", example=example).items():
        torch.testing.assert_close(tensor, plain[name])


def test_a_flow_beyond_double_precision_is_refused():
    with pytest.raises(
        ScoreError,
        match=r"flow through Sequential is inf in double precision: .* score 'path'",
    ):
        sc.score(deep(400, scale=100.0), "synflow", example=torch.zeros(1, 16))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_are_scored_in_double(dtype):
    net = deep(4, dtype=dtype)
    scores = sc.score(net, "synflow", example=torch.zeros(1, 16, dtype=dtype))
    exact = sc.score(net.double(), "synflow", example=torch.zeros(1, 16, dtype=torch.float64))
    for name in scores:
        assert scores[name].dtype == torch.float32
        torch.testing.assert_close(scores[name].double(), exact[name], rtol=1e-5, atol=0)


def test_a_network_that_is_cut_off_scores_zero():
    net = deep(3)
    nn.init.zeros_(net[2].weight)
    assert all(
        float(s.sum()) == 0 for s in sc.score(net, "synflow", example=torch.zeros(1, 16)).values()
    )


def test_all_outputs_are_summed():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 2), nn.Linear(3, 4)

        def forward(self, x):
            return {
                "a": self.a(x),
                "rest": (self.b(x), torch.ones(2, dtype=torch.long)),
            }

    scores = sc.score(Two(), "synflow", example=torch.zeros(1, 3))
    assert all(float(tensor.min()) > 0 for tensor in scores.values())


def test_integer_inputs_stay():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(5, 4), nn.Linear(4, 2, bias=False)

        def forward(self, ids, weight):
            return self.head(self.table(ids) * weight)

    net, ids = Tokens(), torch.tensor([[3]])
    scores = sc.score(net, "synflow", example={"ids": ids, "weight": torch.zeros(1)})["head.weight"]
    expected = net.head.weight.detach().abs() * net.table.weight.detach()[3].abs()
    torch.testing.assert_close(scores, expected)


def test_only_one_example_of_a_batch_flows():
    net, x = deep(2), torch.zeros(8, 16)
    from_batch = sc.score(net, "synflow", batch=(x, torch.zeros(8)))
    one = sc.score(net, "synflow", example=x[:1])
    assert all(torch.equal(from_batch[n], one[n]) for n in one)


def test_synflow():
    """|W|1 = (3, 4), R = |v|·(3, 4) = 2·3 + 1·4 = 10. Score of v_i: |v_i|·h_i = (6, 4); of W_ij:
    |v_i|·|W_ij|·1.
    """
    check(
        sc.score(two_layers(), "synflow", example=X),
        [[2.0, 4.0], [3.0, 1.0]],
        [[6.0, 4.0]],
    )


def test_synflow_chi():
    """As SynFlow with inputs c = (c_1, c_2): W_ij scores |v_i|·|W_ij|·c_j, v_i scores |v_i|·Σ_j
    |W_ij|·c_j.
    """
    scores = sc.score(
        two_layers(),
        "synflow-chi",
        example=X,
        generator=torch.Generator().manual_seed(0),
    )
    c = scores["0.weight"][0] / torch.tensor([2.0, 4.0])
    check(
        scores,
        [[2 * c[0], 4 * c[1]], [3 * c[0], c[1]]],
        [[2 * c[0] + 4 * c[1], 3 * c[0] + c[1]]],
    )
    assert c[0] != c[1]


def test_chi_inputs_are_norms_of_128_normals():
    """c = ‖z‖/√128: E c² = 1, Var c² = 2/128. 5 standard errors of 20,000 draws: p < 6e-7."""
    c = chi(torch.empty(20_000, dtype=torch.float64), torch.Generator().manual_seed(0))
    assert abs(float(c.square().mean()) - 1) < 5 * math.sqrt(2 / 128 / 20_000)
    assert kstest(c.numpy() * math.sqrt(128), "chi", args=(128,)).pvalue > 1e-4


def flow(model, convention="paper"):
    """R = 1ᵀf(1; |w|) by the letter, in evaluation mode."""
    model = copy.deepcopy(model).eval()
    with torch.no_grad():
        for tensor in itertools.chain(
            model.parameters(), model.buffers() if convention == "reference" else ()
        ):
            tensor.abs_()
    return model, lambda: float(model(torch.ones(1, 2, 6, 6, dtype=torch.float64)).detach().sum())


@pytest.mark.parametrize("convention", ["paper", "reference"])
def test_synflow_is_the_derivative_of_the_flow(convention):
    model = small()
    twin, total = flow(model, convention)
    scores = sc.score(model, "synflow", example=batch(1)[0], convention=convention)
    for name in NAMES:
        weight = twin.get_parameter(name).data.view(-1)
        for i in range(0, len(weight), 5):
            kept, step = float(weight[i]), 1e-6
            weight[i] = kept * (1 + step)
            up = total()
            weight[i] = kept * (1 - step)
            slope = (up - total()) / (2 * step)  # ∂R/∂log w_i = w_i ∂R/∂w_i
            weight[i] = kept
            assert float(scores[name].view(-1)[i]) == pytest.approx(slope, rel=1e-6, abs=1e-7)


def test_synflow_of_a_linear_network_is_what_each_weight_carries():
    """Every path crosses a layer once, so R loses exactly score_i when weight i goes, and each
    layer holds all of R.
    """
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(3, 4, bias=False),
        nn.ReLU(),
        nn.Linear(4, 4, bias=False),
        nn.Linear(4, 2, bias=False),
    )
    net.double()
    scores = sc.score(net, "synflow", example=torch.zeros(1, 3, dtype=torch.float64))
    twin = copy.deepcopy(net)
    with torch.no_grad():
        for p in twin.parameters():
            p.abs_()
        whole = float(twin(torch.ones(1, 3, dtype=torch.float64)).sum())
        for name, tensor in scores.items():
            assert float(tensor.sum()) == pytest.approx(whole)
            weight = twin.get_parameter(name).view(-1)
            for i in range(len(weight)):
                kept = float(weight[i])
                weight[i] = 0
                lost = whole - float(twin(torch.ones(1, 3, dtype=torch.float64)).sum())
                weight[i] = kept
                assert float(tensor.view(-1)[i]) == pytest.approx(lost)
