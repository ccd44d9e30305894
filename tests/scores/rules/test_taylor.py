"""Taylor by hand on a network of two layers, and as a mean of squares."""

import pytest
import torch
from torch.nn import functional as F

import secateurs as sc
from scores.oracles import batch, flat, flat_loss, small
from scores.two_layers import X, Y, check, half_square, two_layers


def test_taylor():
    """The squares of w ⊙ ∂L/∂w (see SNIP): (9², 3²) and 12²."""
    check(
        sc.score(two_layers(), "taylor", batch=(X, Y), loss=half_square),
        [[0, 0], [81.0, 9.0]],
        [[0, 144.0]],
    )


@pytest.mark.parametrize("per_batch", [1, 4])
def test_taylor_is_the_mean_of_squares_over_batches(per_batch):
    model, (x, y) = small().eval(), batch()
    squares = []
    for part in range(0, 4, per_batch):
        loss, w = flat_loss(model, x[part : part + per_batch], y[part : part + per_batch])
        squares.append((w * torch.autograd.functional.jacobian(loss, w)).square())
    parts = list(zip(x.split(per_batch), y.split(per_batch), strict=True))
    scores = sc.score(model, "taylor", batch=parts, loss=F.cross_entropy)
    torch.testing.assert_close(flat(scores), torch.stack(squares).mean(0))
