"""Two operations joined to one compute what the two compute."""

from itertools import product

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.ship.fast import compiled

pytestmark = pytest.mark.skipif(compiled.library() is None, reason="no C++ compiler")

STEPS = {
    "scale": lambda x, w: x * 2.0,
    "scales": lambda x, w: x * w,
    "shift": lambda x, w: x + w,
    "turned": lambda x, w: w - x,
    "divided": lambda x, w: x / w,
    "relu": lambda x, w: x.relu(),
    "prelu": lambda x, w: torch.prelu(x, w),
    "norm": lambda x, w: torch.batch_norm(x, w, w - 1, w * 0.1, w.abs(), False, 0.0, 1e-5, False),
    "linear": lambda x, w: nn.functional.linear(x, torch.outer(w, w), w),
    "twice": lambda x, w: x + x,
}


class Two(nn.Module):
    def __init__(self, first, then):
        super().__init__()
        self.first, self.then = first, then
        self.w = nn.Parameter(torch.tensor([1.5, -2.0, 3.0], dtype=torch.float64))

    def forward(self, x):
        return self.then(self.first(x, self.w), self.w)


@pytest.mark.parametrize(("first", "then"), product(STEPS, STEPS))
def test_any_two_steps(first, then):
    model = Two(STEPS[first], STEPS[then]).eval()
    x = torch.randn(4, 3, dtype=torch.float64)
    fast = sc.accelerate(model, (x,), tune="guess", keep="always")
    with torch.inference_mode():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-12, atol=1e-12)


SKIPS = {
    "layer + x": lambda layer, x: layer(x) + x,
    "layer - x": lambda layer, x: layer(x) - x,
    "x - layer": lambda layer, x: x - layer(x),
    "x + 3 layer": lambda layer, x: torch.add(x, layer(x), alpha=3),
    "layer - layer": lambda layer, x: layer(x) - layer(x + 1),
}


class Skip(nn.Module):
    def __init__(self, layer, join):
        super().__init__()
        self.layer, self.join = layer, join

    def forward(self, x):
        return self.join(self.layer, x)


@pytest.mark.parametrize("join", SKIPS)
@pytest.mark.parametrize("conv", [True, False])
def test_a_layer_and_the_sum_behind_it(join, conv):
    """A layer may take the sum into itself, and has to turn its sign where it is taken away."""
    layer = nn.Conv2d(3, 3, 3, padding=1) if conv else nn.Linear(3, 3)
    model = Skip(layer, SKIPS[join]).double().eval()
    shape = (2, 3, 5, 5) if conv else (4, 3)
    x = torch.randn(*shape, dtype=torch.float64)
    fast = sc.accelerate(model, (x,), tune="guess", keep="always")
    with torch.inference_mode():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-12, atol=1e-12)
