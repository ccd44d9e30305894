"""GraSP by hand on a network of two layers, and against an explicit Hessian."""

import pytest
import torch
from torch.nn import functional as F

import secateurs as sc
from scores.oracles import MODES, batch, flat, flat_loss, small
from scores.two_layers import X, Y, check, half_square, two_layers


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


def test_temperature_divides_the_outputs():
    net = two_layers()
    reference = sc.score(net, "grasp", batch=(X, Y), loss=half_square, convention="reference")
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


@pytest.mark.parametrize("temperature", [1.0, 7.0])
@pytest.mark.parametrize("training", MODES)
def test_grasp_is_the_explicit_hessian_times_the_gradient(training, temperature):
    model, (x, y) = small().train(training), batch()
    loss, w = flat_loss(model, x, y, temperature)
    gradient = torch.autograd.functional.jacobian(loss, w)
    hessian = torch.autograd.functional.hessian(loss, w)
    scores = sc.score(model, "grasp", batch=(x, y), loss=F.cross_entropy, temperature=temperature)
    torch.testing.assert_close(flat(scores), w * (hessian @ gradient))
