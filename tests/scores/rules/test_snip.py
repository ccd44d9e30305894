"""SNIP by hand on a network of two layers, and as a derivative to the mask."""

import pytest
import torch
from torch.nn import functional as F

import secateurs as sc
from scores.oracles import MODES, batch, flat, flat_loss, small
from scores.two_layers import X, Y, check, half_square, two_layers


def test_snip():
    """L = (f - y)²/2 with y = -1: ∂L/∂f = f - y = -3. ∂L/∂v = -3·h = (0, -12); ∂L/∂W = -3·v ⊙ [Wx >
    0] xᵀ: the first unit is off, the second has -3·(-1)·(1, 1) = (3, 3). Times w: W: (0, 0), (9,
    3); v: (0, 12).
    """
    scores = sc.score(two_layers(), "snip", batch=(X, Y), loss=half_square)
    check(scores, [[0.0, 0.0], [9.0, 3.0]], [[0.0, 12.0]])


def test_snip_of_the_reference_sums_to_one():
    scores = sc.score(two_layers(), "snip", batch=(X, Y), loss=half_square, convention="reference")
    check(scores, [[0.0, 0.0], [9 / 24, 3 / 24]], [[0.0, 12 / 24]])


@pytest.mark.parametrize("training", MODES)
def test_snip_is_the_derivative_to_the_mask(training):
    model, (x, y) = small().train(training), batch()
    loss, w = flat_loss(model, x, y)
    step, numeric = 1e-6, torch.empty_like(w)
    for i in range(len(w)):
        up, down = w.clone(), w.clone()
        up[i] *= 1 + step
        down[i] *= 1 - step
        numeric[i] = (loss(up) - loss(down)) / (2 * step)
    scores = sc.score(model, "snip", batch=(x, y), loss=F.cross_entropy)
    torch.testing.assert_close(flat(scores), numeric.abs(), atol=1e-8, rtol=1e-5)
