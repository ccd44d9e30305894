"""The schemes of `plan` on models: what is looked up is what is pruned; LeNet-5, VGG are read."""

import itertools
import math

import pytest
import torch
from torch import nn

from secateurs.errors import ArgumentError
from secateurs.theory import plan
from secateurs.theory.chain import read_chain
from secateurs.theory.plan import SCHEMES
from secateurs_lab.models import build


def perceptron(*widths, seed=0):
    torch.manual_seed(seed)
    layers = [nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(*[m for layer in layers for m in (layer, nn.ReLU())][:-1])


def test_global_looks_up_one_threshold():
    """The magnitudes cut are those of one sort over all inner layers; each change is covered."""
    model = perceptron(6, 30, 20, 40, 3)
    found = plan(model, alpha=0.5, scheme="global")
    inner = [model[2].weight.detach().double(), model[4].weight.detach().double()]
    total = sum(math.floor(w.numel() ** 0.5 * (1 + 1e-12)) for w in inner)
    level = torch.cat([w.abs().flatten() for w in inner]).sort().values[total - 1]
    below = [int((w.abs() <= level).sum()) for w in inner]
    assert [layer.removed for layer in found.layers] == [0, *below, 0]
    assert sum(below) == total
    for layer, weight in zip(found.layers[1:-1], inner, strict=True):
        cut = torch.where(weight.abs() <= level, weight, 0.0)
        assert float(torch.linalg.matrix_norm(cut, 2)) <= layer.change


def test_filters_of_smallest_norm_are_looked_up():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 16, 3),
    )
    found = plan(model, alpha=0.8, scheme="filters-magnitude", input_size=4)
    kernel = model[2].weight.detach().double()
    count = found.layers[1].removed
    assert count == math.floor(48**0.6)
    sizes = kernel.abs().sum((2, 3))
    cut = kernel * (sizes <= sizes.flatten().sort().values[count - 1])[..., None, None]
    spectrum = torch.fft.fft2(cut, s=(6, 6)).permute(2, 3, 0, 1)
    assert float(torch.linalg.matrix_norm(spectrum, 2).max()) <= found.layers[1].change


@pytest.mark.parametrize("scheme", ["filters", "filters-without", "filters-magnitude"])
def test_lenet_5_is_planned(scheme):
    """Two convolutions, three linear layers behind them; only the second convolution is cut."""
    found = plan(build("lenet-5").eval(), alpha=0.9, scheme=scheme, input_size=28)
    assert found.widths == (1, 6, 16, 120, 84, 10)
    assert [layer.removed > 0 for layer in found.layers] == [
        False,
        True,
        False,
        False,
        False,
    ]
    assert sum(layer.contribution for layer in found.layers) == pytest.approx(found.error)
    assert 0 < found.error < found.trivial
    assert "conv2" in str(found)


@pytest.mark.parametrize(
    ("name", "linear"), [pytest.param("vgg-16", 3, marks=pytest.mark.slow), ("vgg-19", 2)]
)
def test_vgg_is_read(name, linear):
    chain = read_chain(build(name).eval(), 32)
    assert chain.convs == len(chain.widths) - 1 - linear
    assert chain.last_map == 1 and {layer.taps for layer in chain.layers[: chain.convs]} == {9}
    assert len(chain.inner(chain.widths)) == chain.convs - 1
    assert chain.inner(chain.widths)[0] == 64 * 64


def test_averages_and_overlapping_pools_have_their_constants():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 2)
            self.fc = nn.Linear(8, 2)

        def forward(self, x):
            x = nn.functional.max_pool2d(self.a(x).relu(), 2, 1)
            x = nn.functional.avg_pool2d(self.b(x).relu(), 3, 2)
            return self.fc(x.flatten(1))

    chain = read_chain(Net().eval(), 9)
    # An entry lies in four windows.
    assert chain.between[1].lipschitz == pytest.approx(2.0)
    assert 1 / 3 <= chain.between[2].lipschitz <= 1.0


@pytest.mark.parametrize("scheme", [name for name, s in SCHEMES.items() if not s.filters])
@pytest.mark.parametrize("law", ["uniform", "normal", "subgaussian", "bounded"])
def test_every_scheme_takes_every_law(scheme, law):
    found = plan(perceptron(6, 30, 20, 3), alpha=0.5, scheme=scheme, law=law)
    assert found.law == law
    assert 0 < found.error < math.inf
    assert found.layers[1].removed > 0


def test_normal_entries_take_their_deviation():
    """K is √max · the root mean square; uniform entries are told apart."""
    model = perceptron(40, 200, 200, 10)
    found = plan(model, alpha=0.5, law="normal")
    assert any("not normal" in text for text in found.misfits)
    root = float(model[2].weight.detach().square().mean().sqrt())
    assert read_chain(model).layers[1].deviation == pytest.approx(root * math.sqrt(200), rel=1e-6)


def test_a_filter_scheme_needs_convolutions():
    with pytest.raises(ArgumentError, match="without convolutions: give one of 'magnitude'"):
        plan([6, 8, 8, 2], alpha=0.5, scheme="filters-without")
