"""Appendices E and F: against explicit liftings of layered networks, by hand, and refused where
they do not apply.
"""

import math

import pytest
import torch
from torch import nn

import secateurs as sc
from paths.layers import explicit, layered
from secateurs.errors import ArgumentError
from secateurs.paths.layered import layers_of, normalized
from secateurs.proof.lipschitz import LemmaE1, Lifted
from tiny_networks import KINDS, fully_connected, pruned, randomize, rounded, tuned


def distance(a, b, q):
    return float(torch.linalg.vector_norm(explicit(a) - explicit(b), ord=q))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("change", ["pruned", "rounded", "tuned"])
def test_every_bound_covers_the_explicit_lifting(change, bias, generator):
    for widths in ((3, 4, 2), (2, 3, 3, 2), (3, 2)):
        a = randomize(layered(*widths, bias=bias), generator)
        b = {
            "pruned": lambda m=a: pruned(m, generator),
            "rounded": lambda m=a: rounded(m, 4),
        }.get(change, lambda m=a: tuned(m, generator, 0.3))()
        x = torch.randn(50, widths[0], generator=generator, dtype=torch.float64)
        for q in (1.0, 1.5, 2.0, 4.0):
            bounds = sc.lipschitz_bounds(a, b, x, q=q)
            assert distance(a, b, q) <= bounds["lemma E.1"].value * (1 + 1e-9)
        bounds = sc.lipschitz_bounds(a, b, x)
        assert distance(a, b, 1) <= bounds["theorem E.1"].value * (1 + 1e-9)
        gap = float((a(x) - b(x)).detach().abs().sum(1).max())
        rows = [r for r in bounds.rows if r.of.startswith("‖R") and r.applies]
        same = all(
            bool((p * r >= 0).all()) for p, r in zip(a.parameters(), b.parameters(), strict=True)
        )
        assert same or change == "tuned"
        assert len(rows) == same + 2 * (not bias)
        for row in rows:
            assert gap <= row.value * (1 + 1e-9), row.name


def test_the_printed_lemma_fails_for_q_2():
    """Erratum: one path, θ = (2, 2), θ' = (1, 1): ‖Φ − Φ'‖₂² = 9, while equation (21) prints 4·1·1
    + 1·1 = 5.
    """
    a, b = layered(1, 1, 1, bias=False), layered(1, 1, 1, bias=False)
    for model, w in ((a, 2.0), (b, 1.0)):
        for parameter in model.parameters():
            nn.init.constant_(parameter, w)
    assert distance(a, b, 2) ** 2 == 9.0
    printed = 2.0**2 * (1.0**2 * 1.0) + 1.0**2 * 1.0**2
    assert printed == 5.0 < 9.0
    ours = sc.lipschitz_bounds(a, b, torch.ones(1, 1), q=2)["lemma E.1"]
    assert ours.value == 3.0
    assert ours.remark == "corrected for q > 1"


def test_the_lemma_is_exact_on_one_layer(generator):
    a = randomize(layered(4, 3), generator)
    b = tuned(a, generator)
    for q in (1.0, 2.0, 3.0):
        assert sc.lipschitz_bounds(a, b, torch.ones(1, 4), q=q)["lemma E.1"].value == pytest.approx(
            distance(a, b, q)
        )


@pytest.mark.parametrize("kind", KINDS)
def test_the_lemma_bounds_the_metric_of_every_graph(kind, generator):
    make, shape = KINDS[kind]
    a = randomize(make().double(), generator)
    b = pruned(a, generator)
    x = torch.ones(1, *shape, dtype=torch.float64)
    bounds = sc.lipschitz_bounds(a, b, x)
    metric = float(sc.path_metric(a, b, x))
    assert metric <= bounds["lemma E.1"].value * (1 + 1e-9)
    assert bounds["theorem 3.1"].value == pytest.approx(metric, rel=1e-9)
    assert metric <= bounds["theorem E.1"].value * (1 + 1e-9)
    assert not bounds["corollary F.1"].applies


def by_layers(a, b):
    """Theorem E.1 of a layered network as it is printed, from its normalised matrices."""
    graph = sc.capture(a, torch.zeros(1, a[0].in_features, dtype=torch.float64))
    one, two = (normalized(layers_of(graph, graph.state(m))) for m in (a, b))
    gaps = [
        (x.weight - y.weight).abs().sum(1) + (x.bias - y.bias).abs()
        for x, y in zip(one, two, strict=True)
    ]
    masses = []
    for layers in (one, two):
        mass = torch.ones(layers[0].weight.shape[1], dtype=torch.float64)
        for layer in layers:
            mass = layer.weight.abs() @ mass + layer.bias.abs()
        masses.append(float(mass.sum().detach()))
    along = sum(float(gap.detach().max()) for gap in gaps[:-1])
    return float(gaps[-1].detach().sum()) + min(masses) * along


@pytest.mark.parametrize("bias", [True, False])
def test_theorem_e1_on_layered_networks_is_the_printed_sum(bias, generator):
    for widths in ((3, 4, 2), (2, 5, 3, 2)):
        a = randomize(layered(*widths, bias=bias), generator)
        b = tuned(a, generator, 0.3)
        with torch.no_grad():
            a[0].weight[0] = 0.0  # a neuron that carries nothing in one network only
        value = sc.lipschitz_bounds(a, b, torch.ones(1, widths[0]))["theorem E.1"].value
        assert value == pytest.approx(by_layers(a, b), rel=1e-9)


def test_theorem_e1_as_printed_is_false_for_q_2():
    """Erratum: hidden (θ, b) = (1, 0) and (½, ½), output weights 2 and 1: 2.5 ≤ 1.25 is printed.

    The step that fails is Σ_out ‖θ^{→v}‖_q^q ≤ ‖Φ(θ)‖_q^q: 4 against 4 for θ, but 1 against ½ for
    θ'.
    """

    def phi(weight, bias, out):
        return torch.tensor([weight * out, bias * out], dtype=torch.float64)

    one, two = (1.0, 0.0, 2.0), (0.5, 0.5, 1.0)
    left = float((phi(*one) - phi(*two)).square().sum())
    norms = [float(phi(*values).square().sum()) for values in (one, two)]
    hidden = (one[0] - two[0]) ** 2 + (one[1] - two[1]) ** 2
    printed = (one[2] - two[2]) ** 2 + min(norms) * hidden
    assert (left, printed) == (2.5, 1.25)
    assert two[2] ** 2 > norms[1]
    a, b = layered(1, 1, 1), layered(1, 1, 1)
    for model, (weight, bias, out) in ((a, one), (b, two)):
        for parameter, value in zip(model.parameters(), (weight, bias, out, 0.0), strict=True):
            nn.init.constant_(parameter, value)
    assert distance(a, b, 2) ** 2 == pytest.approx(2.5)
    row = sc.lipschitz_bounds(a, b, torch.ones(1, 1), q=2)["theorem E.1"]
    assert not row.applies and "false" in row.remark


def test_corollary_f_1_by_hand():
    """L = 2, W = 3, R = max(1, row norms) = 6, ‖θ − θ'‖_∞ = 1, ‖x‖_∞ = 2."""
    a, b = layered(2, 3, 1, bias=False), layered(2, 3, 1, bias=False)
    for parameter in a.parameters():
        nn.init.constant_(parameter, 2.0)
    for parameter in b.parameters():
        nn.init.constant_(parameter, 1.0)
    bounds = sc.lipschitz_bounds(a, b, torch.tensor([[1.0, -2.0]]))
    assert bounds["corollary F.1"].value == 2 * 2 * 2 * 3**2 * 6 * 1
    assert bounds["corollary F.1 (older bound)"].value == (3 * 2 + 1) * 3 * 2**2 * 6 * 1
    assert bounds["theorem 3.1"].value == 2 * (2 * 3 * 4 - 2 * 3 * 1)
    assert "theorem 3.1" in {row.name for row in bounds.rows}
    assert bounds.__rich__().row_count == 5


def test_errors(generator):
    a = randomize(fully_connected(), generator)
    with pytest.raises(ArgumentError, match=r"q=0\.5"):
        sc.lipschitz_bounds(a, a, torch.zeros(1, 5), q=0.5)
    with pytest.raises(ArgumentError, match=r"q=inf"):
        sc.lipschitz_bounds(a, a, torch.zeros(1, 5), q=math.inf)
    with pytest.raises(ArgumentError, match="there is no row 'x'"):
        sc.lipschitz_bounds(a, a, torch.zeros(1, 5))["x"]


class TwoDepths(nn.Module):
    """One output straight from the input, the other behind a hidden neuron."""

    def __init__(self, hidden: list[float]) -> None:
        super().__init__()
        self.first = nn.Linear(2, 1, bias=False)
        self.last = nn.Linear(1, 1, bias=False)
        self.direct = nn.Linear(2, 1, bias=False)
        for layer, row in (
            (self.first, hidden),
            (self.last, [1.0]),
            (self.direct, [0.0, 0.0]),
        ):
            layer.weight = nn.Parameter(torch.tensor([row], dtype=torch.float64))

    def forward(self, x):
        return torch.cat([self.last(torch.relu(self.first(x))), self.direct(x)], 1)


def test_theorem_e1_takes_the_path_that_moves_most():
    """The direct output has no hidden neuron that moves; the other one's decides."""
    a, b = TwoDepths([1.0, 0.0]), TwoDepths([0.0, 1.0])
    x = torch.ones(1, 2, dtype=torch.float64)
    moved = float((sc.paths.lifting(a, x).phi - sc.paths.lifting(b, x).phi).abs().sum())
    assert moved == 2.0
    assert sc.lipschitz_bounds(a, b, x)["theorem E.1"].value >= moved


@pytest.mark.parametrize("q", [1, 2, 3])
@pytest.mark.parametrize("moved", ["head", "added"])
def test_a_bias_that_is_added_by_itself(q, moved):
    """One path through the weight a = 2, one from p = 3, both through the head 0.5, by hand."""

    class Added(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.head = (nn.Linear(1, 1, bias=False) for _ in "ab")
            self.added = nn.Parameter(torch.tensor([3.0]))

        def forward(self, x):
            return self.head(self.a(x) + self.added)

    nets = Added().double(), Added().double()
    for net in nets:
        net.a.weight.data.fill_(2.0)
        net.head.weight.data.fill_(0.5)
        net.added.data.fill_(3.0)
    if moved == "head":
        nets[1].head.weight.data.fill_(0.7)
        want = 0.2 * (2.0**q + 3.0**q) ** (1 / q)
    else:
        nets[1].added.data.fill_(3.5)
        want = 0.5 * 0.5
    x = torch.ones(1, 1, dtype=torch.float64)
    value = sc.lipschitz_bounds(*nets, x, q=q)["lemma E.1"].value
    assert value == pytest.approx(want, rel=1e-12)


def test_branches_that_meet_add_up_in_the_norm_of_q():
    """‖(a, b)‖_q of two disjoint sets of paths: 3 and 4 make 5 for q = 2."""
    three, four = (torch.full((2,), float(n)) for n in (3, 4))
    met = LemmaE1(2.0).add(None, [Lifted(gap=three, norm=four), Lifted(gap=four, norm=three)])
    assert met.gap.tolist() == met.norm.tolist() == [5.0, 5.0]
