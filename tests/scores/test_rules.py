"""Scores against formulas derived by hand on a two-layer net f(x) = vᵀ·relu(Wx).

W = [[1, -2], [3, 1]], v = [2, -1], x = (1, 1): Wx = (-1, 4), h = relu(Wx) = (0, 4), f = -4.
"""

import math

import pytest
import torch
from scipy.stats import kstest
from torch import nn

import secateurs as sc
from secateurs.scores.rules.synflow import chi


def two_layers(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    net = nn.Sequential(
        nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False)
    ).to(dtype)
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, -2.0], [3.0, 1.0]]))
        net[2].weight.copy_(torch.tensor([[2.0, -1.0]]))
    return net


X = torch.ones(1, 2, dtype=torch.float64)
Y = torch.full((1, 1), -1.0, dtype=torch.float64)


def half_square(output, target):
    return (output - target).square().mean() / 2


def check(scores, first, second):
    torch.testing.assert_close(
        scores["0.weight"], torch.tensor(first, dtype=torch.float64)
    )
    torch.testing.assert_close(
        scores["2.weight"], torch.tensor(second, dtype=torch.float64)
    )


def test_magnitude():
    check(sc.score(two_layers(), "magnitude"), [[1.0, 2.0], [3.0, 1.0]], [[2.0, 1.0]])


def test_snip():
    """L = (f - y)²/2 with y = -1: ∂L/∂f = f - y = -3. ∂L/∂v = -3·h = (0, -12); ∂L/∂W = -3·v ⊙ [Wx >
    0] xᵀ: the first unit is off, the second has -3·(-1)·(1, 1) = (3, 3). Times w: W: (0, 0), (9,
    3); v: (0, 12).
    """
    scores = sc.score(two_layers(), "snip", batch=(X, Y), loss=half_square)
    check(scores, [[0.0, 0.0], [9.0, 3.0]], [[0.0, 12.0]])


def test_snip_of_the_reference_sums_to_one():
    scores = sc.score(
        two_layers(), "snip", batch=(X, Y), loss=half_square, convention="reference"
    )
    check(scores, [[0.0, 0.0], [9 / 24, 3 / 24]], [[0.0, 12 / 24]])


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
    c = chi(
        torch.empty(20_000, dtype=torch.float64), torch.Generator().manual_seed(0)
    )
    assert abs(float(c.square().mean()) - 1) < 5 * math.sqrt(2 / 128 / 20_000)
    assert kstest(c.numpy() * math.sqrt(128), "chi", args=(128,)).pvalue > 1e-4


def test_grasp():
    """With s = W_21 + W_22 = 4 and v = v_2 = -1 the loss is (v·s - y)²/2 and e = v·s - y = -3; the
    first unit is off. g: W_2j: e·v = 3; v: e·s = -12. H: W-W: v² = 1; W-v: v·s + e = -7; v-v: s² =
    16. Hg: W_2j: 3 + 3 + (-7)(-12) = 90; v: 2·(-7)·3 + 16·(-12) = -234. Times w: 3·90, 1·90,
    (-1)(-234).
    """
    scores = sc.score(two_layers(), "grasp", batch=(X, Y), loss=half_square)
    check(scores, [[0.0, 0.0], [270.0, 90.0]], [[0.0, 234.0]])


def test_grasp_predicts_the_norm_of_the_gradient():
    """Removing a little of a weight, w_i(1 - ε), changes ½‖g‖² by -ε·score_i: large scores carry
    the gradient.
    """
    net = two_layers()
    scores = sc.score(net, "grasp", batch=(X, Y), loss=half_square)

    def half_norm():
        gradient = torch.autograd.grad(half_square(net(X), Y), list(net.parameters()))
        return float(sum(g.square().sum() for g in gradient)) / 2

    before, epsilon = half_norm(), 1e-6
    with torch.no_grad():
        net[0].weight[1, 0] *= 1 - epsilon
    assert (half_norm() - before) / epsilon == pytest.approx(
        -float(scores["0.weight"][1, 0]), rel=1e-4
    )


def test_jacobian():
    """∂f/∂v = h = (0, 4); ∂f/∂W: the first unit is off, the second has v_2·x = (-1, -1). Times
    |w|.
    """
    check(
        sc.score(two_layers(), "jacobian", batch=X),
        [[0.0, 0.0], [3.0, 1.0]],
        [[0.0, 4.0]],
    )


def test_taylor():
    """The squares of w ⊙ ∂L/∂w (see SNIP): (9², 3²) and 12²."""
    check(
        sc.score(two_layers(), "taylor", batch=(X, Y), loss=half_square),
        [[0, 0], [81.0, 9.0]],
        [[0, 144.0]],
    )


def test_wanda():
    """Over the examples (1, 1) and (3, -4): ‖x_1‖ = √10, ‖x_2‖ = √17; h is (0, 4) and relu(11, 5) =
    (11, 5).
    """
    x = torch.tensor([[1.0, 1.0], [3.0, -4.0]], dtype=torch.float64)
    first = [[10**0.5, 2 * 17**0.5], [3 * 10**0.5, 17**0.5]]
    check(sc.score(two_layers(), "wanda", batch=x), first, [[2 * 11.0, 41**0.5]])
    halved = [[v / 2**0.5 for v in row] for row in first]
    check(
        sc.score(two_layers(), "wanda", batch=x, convention="reference"),
        halved,
        [[22 / 2**0.5, (41 / 2) ** 0.5]],
    )


def test_random_is_uniform():
    scores = sc.score(
        nn.Linear(100, 100), "random", generator=torch.Generator().manual_seed(0)
    )["weight"]
    assert float(scores.min()) > 0 and float(scores.max()) <= 1
    assert kstest(scores.flatten().numpy(), "uniform").pvalue > 1e-4


def test_batches_count_by_their_size():
    """Mean over all examples: a list of uneven batches is the concatenated batch. Taylor squares
    per batch.
    """
    net = two_layers()
    x, y = (
        torch.randn(5, 2, dtype=torch.float64),
        torch.randn(5, 1, dtype=torch.float64),
    )
    parts = [(x[:2], y[:2]), (x[2:], y[2:])]
    for name in ("snip", "grasp", "wanda"):
        loader = [list(part) for part in parts]  # a DataLoader makes lists of [x, y]
        whole, split = (
            sc.score(net, name, batch=b, loss=half_square) for b in ((x, y), loader)
        )
        check(split, whole["0.weight"].tolist(), whole["2.weight"].tolist())
    first, second = (
        sc.score(net, "taylor", batch=b, loss=half_square)["0.weight"] for b in parts
    )
    together = sc.score(net, "taylor", batch=parts, loss=half_square)["0.weight"]
    torch.testing.assert_close(together, (2 * first + 3 * second) / 5)


def test_temperature_divides_the_outputs():
    net = two_layers()
    reference = sc.score(
        net, "grasp", batch=(X, Y), loss=half_square, convention="reference"
    )
    by_hand = sc.score(
        net,
        "grasp",
        batch=(X, Y),
        loss=lambda o, y: half_square(o / 200, y),
        temperature=1,
    )
    total = abs(sum(float(s.sum()) for s in by_hand.values())) + 1e-10
    check(
        reference,
        (by_hand["0.weight"] / total).tolist(),
        (by_hand["2.weight"] / total).tolist(),
    )


def test_wanda_sees_layers_that_are_called_by_keyword():
    class ByKeyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, x):
            return self.inner(input=x)

    model, x = ByKeyword(), torch.randn(5, 3)
    plain = sc.score(nn.Sequential(model.inner), "wanda", batch=x)["0.weight"]
    assert torch.equal(sc.score(model, "wanda", batch=x)["inner.weight"], plain)
