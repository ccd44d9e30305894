"""The norm of each column of the Jacobian: by hand, entry by entry, and sketched."""

import copy
import itertools

import torch
from torch import nn

import secateurs as sc
from scores.oracles import NAMES, batch, flat, flat_loss, small
from scores.two_layers import X, check, two_layers


def test_jacobian():
    """∂f/∂v = h = (0, 4); ∂f/∂W: the first unit is off, the second has v_2·x = (-1, -1). Times
    |w|.
    """
    check(
        sc.score(two_layers(), "jacobian", batch=X),
        [[0.0, 0.0], [3.0, 1.0]],
        [[0.0, 4.0]],
    )


def brute_jacobian(model, x):
    """∂f_k(x_n)/∂w_i, one number at a time by one backward pass each."""
    model = copy.deepcopy(model).eval()
    outputs = model(x)
    rows = []
    for n, k in itertools.product(range(outputs.shape[0]), range(outputs.shape[1])):
        model.zero_grad()
        outputs[n, k].backward(retain_graph=True)
        rows.append(torch.cat([model.get_parameter(name).grad.flatten() for name in NAMES]))
    return torch.stack(rows)


def test_jacobian_is_the_norm_of_each_column():
    model, (x, _) = small(), batch()
    expected = brute_jacobian(model, x).square().sum(0).sqrt() * flat_loss(model, x, None)[1].abs()
    torch.testing.assert_close(flat(sc.score(model, "jacobian", batch=x)), expected)
    one_by_one = sc.score(model, "jacobian", batch=list(x.split(1)))
    torch.testing.assert_close(flat(one_by_one), expected)


def test_the_jacobian_sketch_is_unbiased():
    """(Jᵀv)_i² averages to ‖J_i‖². Its moments are at most those of ‖J_i‖²·χ²_1, so for the mean of
    k = 4,000 draws and t = 0.2 the upper tail is below e^-33 (Laurent & Massart) and the lower
    below e^(-k t²/6) = e^-26; about 100 entries: this test fails by chance with probability below
    1e-9.
    """
    model, (x, _) = small(), batch(2)
    draws = 4000
    exact = flat(sc.score(model, "jacobian", batch=x)).square()
    estimate = sc.score(
        model,
        "jacobian",
        batch=x,
        draws=draws,
        generator=torch.Generator().manual_seed(0),
    )
    live = exact > 0
    error = flat(estimate).square()[live] / exact[live] - 1
    assert float(error.abs().max()) < 0.2


def test_the_probabilities_of_sketching():
    """Linear model: SNIP on sparse data with the l1 loss and the Jacobian score are ∝ ‖X_(i)‖·|w_i|
    (eq. 2).
    """
    g = torch.Generator().manual_seed(0)
    net = nn.Linear(7, 1, bias=False).double()
    x, _ = sc.scores.probe(
        "sparse", torch.empty(1, 7, dtype=torch.float64), examples=5, generator=g
    )
    optimal = x.norm(dim=0) * net.weight.detach().abs()
    y = torch.randn(5, 1, dtype=torch.float64, generator=g)
    snip = sc.score(net, "snip", batch=(x, y), loss=sc.scores.l1)["weight"]
    jacobian = sc.score(net, "jacobian", batch=x)["weight"]
    torch.testing.assert_close(5 * snip, optimal)  # the mean over five examples
    torch.testing.assert_close(jacobian, optimal)
