"""Convolutions of generators: the compiled ones equal torch's."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from proof.pairs import problem_of
from secateurs.base import native
from secateurs.base.random import generator
from secateurs.graph import Affine, capture
from secateurs.proof import convolve, zonotope
from secateurs.proof.certify import prove
from secateurs.proof.convolve import Convolution
from secateurs.proof.domain import ball_domain
from secateurs.proof.forms import linear
from tiny_networks import pruned, randomize


def node_of(layer, *shape):
    graph = capture(layer.double(), torch.zeros(1, *shape, dtype=torch.float64))
    return next(node for node in graph.nodes if isinstance(node, Affine))


def whole_numbers(g, *shape):
    """Sums of their products are exact in any order."""
    return torch.randint(-8, 9, shape, generator=g).double()


def result(node, weights, rows):
    convolution = Convolution.of(node, weights)
    assert convolution is not None
    # Nothing may be left of what the memory held.
    count = next(len(x[0]) for x in rows if x is not None)
    out = torch.full((count, *node.shape), math.nan, dtype=torch.float64)
    mass = torch.ones(1, *node.shape, dtype=torch.float64)
    convolution.into(out, mass, rows)
    assert torch.equal(mass - 1, out.abs().sum(dim=0, keepdim=True))
    return out


@pytest.mark.parametrize("seed", range(80))
def test_a_convolution_of_a_window_is_that_of_the_map(seed):
    g = generator(seed, "windows")

    def draw(low, high):
        return int(torch.randint(low, high, (), generator=g))

    how = {name: (draw(1, 4), draw(1, 4)) for name in ("kernel_size", "stride")}
    how |= {"padding": (draw(0, 4), draw(0, 4)), "dilation": (draw(1, 3), draw(1, 3))}
    groups, height, width = 1 + seed % 2, draw(6, 12), draw(6, 40)
    layer = nn.Conv2d(4, groups * draw(1, 8), **how, groups=groups, bias=False)
    weight = whole_numbers(g, *layer.weight.shape)
    # Some blocks of weights are zero as a whole.
    weight *= torch.rand(weight.shape, generator=g) < (0.1, 0.5, 1.0)[seed % 3]
    node = node_of(layer, 4, height, width)
    rows = torch.zeros(3, 1, 4, height, width, dtype=torch.float64)
    top, left = draw(0, height), draw(0, width)
    area = rows[..., top : draw(top, height) + 1, left : draw(left, width) + 1]
    area.copy_(whole_numbers(g, *area.shape))
    # A map that is zero lies among them.
    rows[1] = 0
    scale = whole_numbers(g, *rows.shape[1:]).unsqueeze(0)
    assert torch.equal(result(node, [weight], [(rows, None)]), linear(node, rows, weight))
    right = linear(node, rows * scale, weight)
    assert torch.equal(result(node, [weight], [(rows, scale)]), right)


@pytest.mark.parametrize("seed", range(60))
def test_small_maps_are_convolved_side_by_side(seed):
    g = generator(seed, "beside")

    def draw(low, high):
        return int(torch.randint(low, high, (), generator=g))

    how = {name: (draw(1, 4), draw(1, 4)) for name in ("kernel_size", "stride")}
    how |= {"padding": (draw(0, 2), draw(0, 2)), "dilation": (draw(1, 3), draw(1, 3))}
    ways = (how[name] for name in ("dilation", "kernel_size", "padding"))
    height, width = (
        max(draw(1, 9), step * (size - 1) + 1 - 2 * pad)
        for step, size, pad in zip(*ways, strict=True)
    )
    channels, maps = draw(1, 12), draw(16, 75)
    layer = nn.Conv2d(channels, draw(1, 20), **how, bias=False)
    weight = whole_numbers(g, *layer.weight.shape)
    weight *= torch.rand(weight.shape, generator=g) < (0.1, 0.5, 1.0)[seed % 3]
    node = node_of(layer, channels, height, width)
    rows = torch.zeros(maps, 1, channels, height, width, dtype=torch.float64)
    # Those that are taken together reach different places.
    area = rows[: draw(1, maps), ..., draw(0, height) :, : draw(1, width + 1)]
    area.copy_(whole_numbers(g, *area.shape))
    scale = whole_numbers(g, *rows.shape[1:]).unsqueeze(0)
    right = linear(node, rows * scale, weight)
    assert torch.equal(result(node, [weight], [(rows, scale)]), right)
    more = whole_numbers(g, *rows.shape)
    both = [(rows, scale), (more, None)]
    sums = right + linear(node, more, -weight)
    assert torch.equal(result(node, [weight, -weight], both), sums)


def test_several_values_are_summed_and_those_without_these_symbols_left_out():
    g = generator(0, "sums")
    node = node_of(nn.Conv2d(3, 5, 3, padding=1), 3, 7, 9)
    weights = [whole_numbers(g, 5, 3, 3, 3) for _ in range(2)]
    one, two = (whole_numbers(g, 4, 1, 3, 7, 9) for _ in range(2))
    # Of the second few entries are not zero, and what the first wrote beside them stays.
    two[..., :5, :] = 0
    first, second = (linear(node, x, weight) for x, weight in zip((one, two), weights, strict=True))
    assert torch.equal(result(node, weights, [(one, None), (two, None)]), first + second)
    assert torch.equal(result(node, weights, [None, (two, None)]), second)
    assert torch.equal(result(node, weights, [(one, None), None]), first)
    out = torch.full((2, *node.shape), math.nan, dtype=torch.float64)
    mass = torch.zeros(1, *node.shape, dtype=torch.float64)
    Convolution.of(node, weights).into(out, mass, [None, None])
    assert not bool(out.any()) and not bool(mass.any())


@pytest.mark.parametrize("value", [2.0, -5e-324, math.inf, math.nan])
def test_a_single_number_of_any_size_is_not_taken_for_zero(value):
    node = node_of(nn.Conv2d(1, 1, 3, padding=1), 1, 6, 6)
    rows = torch.zeros(1, 1, 1, 6, 6, dtype=torch.float64)
    rows[..., 1, 1] = value
    weight = torch.ones(1, 1, 3, 3, dtype=torch.float64)
    out = torch.zeros(1, *node.shape, dtype=torch.float64)
    Convolution.of(node, [weight]).into(out, torch.zeros_like(out), [(rows, None)])
    assert torch.equal(out.nan_to_num(nan=7.0), linear(node, rows, weight).nan_to_num(nan=7.0))


@pytest.mark.parametrize("size", [12, 5])
def test_the_bits_do_not_depend_on_the_number_of_threads(size):
    g = generator(0, "threads")
    node = node_of(nn.Conv2d(8, 9, 3, padding=1), 8, size, size)
    weight = torch.randn(9, 8, 3, 3, generator=g, dtype=torch.float64)
    rows = torch.randn(40, 1, 8, size, size, generator=g, dtype=torch.float64)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            out = torch.empty(40, *node.shape, dtype=torch.float64)
            mass = torch.zeros(1, *node.shape, dtype=torch.float64)
            Convolution.of(node, [weight]).into(out, mass, [(rows, None)])
            found.append((out, mass))
    finally:
        torch.set_num_threads(before)
    assert all(
        torch.equal(one, two) for x in found[1:] for one, two in zip(x, found[0], strict=True)
    )


def test_other_maps_are_left_to_torch():
    weight = torch.zeros(2, 3, 3, 3, dtype=torch.float64)
    node = node_of(nn.Conv2d(3, 2, 3), 3, 5, 5)
    assert Convolution.of(node, [weight]) is not None
    assert Convolution.of(node, [weight.float()]) is None
    assert Convolution.of(node_of(nn.Linear(3, 2), 3), [weight[:, :, 0, 0]]) is None
    assert Convolution.of(node_of(nn.AvgPool2d(2), 3, 6, 6), [weight]) is None


@pytest.mark.parametrize("batch", [2**18, 128])
def test_bounds_without_a_compiler_are_the_same(monkeypatch, batch):
    dense = nn.Sequential(
        *(nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 3, 3, stride=2), nn.ReLU()),
        *(nn.Conv2d(3, 4, 3, padding=1, groups=1), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)),
    ).double()
    randomize(dense, generator(0))
    sparse = pruned(dense, generator(1))
    x = torch.randn(1, 2, 8, 8, generator=generator(2), dtype=torch.float64)
    monkeypatch.setattr(zonotope, "_BATCH", batch)
    found = []
    for kernel in (convolve.compiled(), None):
        monkeypatch.setattr(convolve, "compiled", lambda kernel=kernel: kernel)
        problem = replace(problem_of(dense, sparse, x))
        proof = prove(
            problem,
            ball_domain(x, 0.01),
            methods=["zonotope"],
            norm=math.inf,
            rounding="auto",
        )
        found.append(proof.per_box)
    assert torch.allclose(*found, rtol=1e-9) and bool((found[0] > 0).all())


def test_a_binary_that_computes_something_else_is_refused(tmp_path, caplog):
    source = tmp_path / "convolve.cpp"
    text = convolve.SOURCE.read_text(encoding="utf-8")
    source.write_text(text.replace("total[k][b] += ", "total[k][b] -= "), encoding="utf-8")
    made = native.kernel(
        source,
        convolve._load,
        switch="SECATEURS_NATIVE",
        what="convolutions",
        fallback="torch does them",
        log=convolve._log,
    )
    assert made is None
    assert "computes something else" in caplog.text
