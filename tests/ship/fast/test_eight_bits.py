"""Linear layers in eight bits: equal to the same rounding done by hand, in whole numbers."""

import numpy as np
import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import ArgumentError
from secateurs.ship.fast.eight_bits import EightBits, eight_bit_kernel, in_blocks
from secateurs.ship.fast.operations import Conv

pytestmark = pytest.mark.skipif(eight_bit_kernel() is None, reason="no C++ compiler")


def layer(inputs: int, outputs: int, density: float, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    words = -(-inputs // 4)
    kept = np.repeat(draw.random((outputs, words)) < density, 4, axis=1)[:, :inputs]
    return draw.standard_normal((outputs, inputs)) * kept


def by_hand(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    most = np.abs(weight).max(axis=1, keepdims=True)
    scale = np.where(most > 0, most / 127, 1.0)
    rows = np.abs(x).max(axis=1, keepdims=True)
    by = np.where(rows > 0, np.float32(127) / np.where(rows > 0, rows, 1), 0).astype(np.float32)
    # As the kernel rounds: upwards from the middle, in single precision.
    whole = np.floor(x * by + np.float32(128.5)).astype(np.int64) - 128
    sums = whole @ np.rint(weight / scale).astype(np.int64).T
    return sums * (rows / 127.0) * scale.T + bias


@pytest.mark.parametrize(("inputs", "outputs"), [(64, 48), (30, 21), (3, 1), (200, 17), (257, 64)])
@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
def test_equal_to_the_rounding_by_hand(inputs, outputs, density):
    weight = layer(inputs, outputs, density)
    bias = np.arange(outputs, dtype=float)
    run = EightBits(eight_bit_kernel(), weight, bias)
    for rows in (0, 1, 5, 16, 33, 48, 80, 96, 112, 128, 131, 300):
        x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows))
        x[:1] = 0
        found, wanted = run(x).numpy(), by_hand(x.numpy(), weight, bias)
        assert np.abs(found - wanted).max(initial=0) <= 1e-5 * max(1, np.abs(wanted).max(initial=0))


def test_threads_share_rows(monkeypatch):
    weight = layer(256, 256, 1.0)
    run = EightBits(eight_bit_kernel(), weight, np.zeros(256))
    x = torch.randn(1000, 256)
    once = run(x)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert torch.equal(run(x), once)


def test_rows_that_are_no_numbers_stay_so():
    run = EightBits(eight_bit_kernel(), layer(40, 8, 0.5), np.zeros(8))
    x = torch.randn(3, 40)
    x[0, 39], x[1, 2] = float("inf"), float("nan")
    found = run(x)
    assert found[:2].isnan().all() and found[2].isfinite().all()
    assert run(x.double()) is None and run(x.numpy()) is None


def test_blocks_are_told_from_scattered_zeros():
    blocks = layer(64, 64, 0.2)[:, :, None, None]
    scattered = np.where(np.random.default_rng(0).random(blocks.shape) < 0.2, 1.0, 0.0)
    assert in_blocks(Conv(source="x", to="y", weight=blocks, bias=np.zeros(64)))
    assert not in_blocks(Conv(source="x", to="y", weight=scattered, bias=np.zeros(64)))


def test_a_network_of_blocks():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 64), nn.Linear(64, 64))
    sc.prune_(model.eval(), "magnitude", sparsity=0.8, pattern="1x4")
    with torch.no_grad():
        model[3].weight *= torch.rand_like(model[3].weight) < 0.3  # scattered: exact
    options = {"tune": "guess", "keep": "always", "values": "int8"}
    fast = sc.accelerate(model, torch.zeros(1, 96), **options)
    ways = {layer.place.split()[0]: layer.ways[0] for layer in fast.report.layers}
    assert "eight bits" in ways["0"] and "eight bits" in ways["2"] and "of the largest" in ways["0"]
    with torch.inference_mode():
        x = torch.randn(4, 7, 96)
        wanted = model(x)
        apart = float((fast(x) - wanted).abs().max() / wanted.abs().max())
    assert 0 < apart < 0.05
    with pytest.raises(ArgumentError, match="float32, not torch.float64"):
        sc.accelerate(model.double(), torch.zeros(1, 96).double(), **options)
    with pytest.raises(ArgumentError, match="'int4'"):
        sc.accelerate(model, torch.zeros(1, 96).double(), values="int4")
