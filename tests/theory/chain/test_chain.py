"""What `plan` reads off a model: chains it can speak of, with biases and activations; all others
refused by name.
"""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from secateurs.errors import ParameterError, TheoryError
from secateurs.theory import conv_operator_norm, plan
from secateurs.theory.chain import ChainLayer, read_chain
from secateurs_lab.models import build
from theory.plan.networks import ADMITTED, mlp


def test_what_lies_between_the_layers():
    """Lipschitz constants multiply; biases pass through the activation; σ(0) counts per neuron."""
    model = mlp(lambda n: nn.Sequential(nn.LeakyReLU(2.0), nn.Sigmoid()), (3, 4, 4, 2))
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.constant_(layer.bias, -1.0)
    entry, first, _, last = read_chain(model, None).between
    assert (entry.lipschitz, entry.at_zero(3)) == (1.0, 0.0)
    assert first.lipschitz == 0.5 and first.rest == pytest.approx(0.5)
    assert first.at_zero(4) >= float(torch.sigmoid(torch.full((4,), -2.0)).norm())
    assert (last.lipschitz, last.bias, last.rest) == (
        1.0,
        pytest.approx(math.sqrt(2)),
        0.0,
    )


def test_the_units_of_a_layer_s_entries():
    """K of ±K/√(taps · max(rows, columns)): by the largest entry, and by the root mean square."""
    matrix = ChainLayer(name="a", weight=torch.tensor([[0.5, -0.1], [0.1, 0.1], [-0.1, 0.3]]))
    assert matrix.scale == pytest.approx(0.5 * math.sqrt(3))
    assert matrix.deviation == pytest.approx(math.sqrt(0.38 / 6 * 3))
    kernel = ChainLayer(name="b", weight=torch.full((2, 4, 3, 3), -0.25))
    assert kernel.scale == kernel.deviation == pytest.approx(0.25 * 6)
    given = ChainLayer(name="c")
    assert (given.read, given.scale, given.deviation) == (False, 1.0, 1.0)


def test_a_module_of_ones_own_is_read_by_its_graph():
    """Same layers, same plan; the order of use counts, not that of definition."""

    class Own(nn.Module):
        def __init__(self, layers):
            super().__init__()
            self.third, self.second, self.first = reversed(layers)

        def forward(self, x):
            x = F.leaky_relu(self.first(x.flatten(1)), 2.0)
            return self.third(F.relu(self.second(x)))

    layers = [nn.Linear(7, 9), nn.Linear(9, 7), nn.Linear(7, 3)]
    own = Own(layers)
    listed = nn.Sequential(layers[0], nn.LeakyReLU(2.0), layers[1], nn.ReLU(), layers[2])
    found, same = plan(own, alpha=0.5), plan(listed, alpha=0.5)
    assert found.widths == (7, 9, 7, 3) and found.error == pytest.approx(same.error, rel=1e-6)
    assert [layer.name for layer in found.layers] == ["first", "second", "third"]
    assert plan(build("lenet-300-100"), alpha=0.3).widths == (784, 300, 100, 10)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(8, 16), nn.Linear(16, 4)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def forward(self, x):
        x = self.into(x)
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.out(x)


class Bent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


SHARED = nn.Linear(8, 8)
REFUSED = {
    "paths part or meet": Residual(),
    r"aten\.tanh.*write it as an nn\.Sequential": Bent(),
    r"LayerNorm that has no known Lipschitz constant \(1\)": mlp(nn.LayerNorm),
    "TransformerEncoderLayer": nn.TransformerEncoderLayer(8, 2),
    r"one weight in 2 places \(1, 3\)": nn.Sequential(
        nn.Linear(4, 8), SHARED, nn.ReLU(), SHARED, nn.Linear(8, 2)
    ),
    "BatchNorm1d that divides by the statistics": mlp(
        lambda n: nn.BatchNorm1d(n, track_running_stats=False)
    ),
    "Softplus that jumps at its threshold of 1": mlp(lambda n: nn.Softplus(threshold=1.0)),
    "1 does not take the shape": mlp(lambda n: nn.BatchNorm1d(n + 1)),
    "2 takes 5 features and would get 4": nn.Sequential(
        nn.Linear(3, 4), nn.ReLU(), nn.Linear(5, 6)
    ),
    "no linear layer": nn.Sequential(nn.ReLU()),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_the_theorems_do_not_cover_is_refused_by_name(message):
    with pytest.raises(TheoryError, match=message):
        plan(REFUSED[message], alpha=0.5)


@pytest.mark.parametrize("where", ["weight", "bias"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_numbers_are_named(where, value):
    model = mlp(lambda n: nn.ReLU())
    getattr(model[2], where).data.flatten()[3] = value
    with pytest.raises(ParameterError, match=f"2: NaN or infinite values in {where}"):
        plan(model, alpha=0.5)
    convs = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(32, 2))
    getattr(convs[1], where).data.flatten()[0] = value
    with pytest.raises(ParameterError, match=f"1: NaN or infinite values in {where}"):
        plan(convs, alpha=0.5, scheme="filters", input_size=8)
    norm = mlp(nn.BatchNorm1d)
    norm[1].weight.data[0] = value
    with pytest.raises(ParameterError, match="1: NaN or infinite parameters"):
        plan(norm, alpha=0.5)


def test_the_model_is_left_alone():
    model = mlp(ADMITTED["batch norm, relu"]).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plan(model, alpha=0.5)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("padding", "kernel", "size", "factor"),
    [(4, 1, 4, 3.0), (1, 3, 6, 1.0), (0, 3, 6, 1.0)],
)
def test_circular_padding_beyond_same_repeats_outputs(padding, kernel, size, factor, generator):
    """The map as torch computes it, as a matrix, against the circular operator times the factor:
    equal where every output occurs equally often, less where some are left out.
    """
    conv = nn.Conv2d(3, 5, kernel, padding=padding, padding_mode="circular", bias=False).double()
    model = nn.Sequential(
        copy.deepcopy(conv),
        nn.Flatten(),
        nn.Linear(5 * (size + 2 * padding - kernel + 1) ** 2, 2),
    )
    assert [layer.repeats for layer in read_chain(model, size).layers] == [factor, 1.0]
    basis = torch.eye(3 * size * size, dtype=torch.float64).view(-1, 3, size, size)
    true = float(torch.linalg.matrix_norm(conv(basis).flatten(1).detach(), 2))
    circular = conv_operator_norm(conv.weight.detach(), size).value
    assert true <= factor * circular * (1 + 1e-9)
    assert true > 0.99 * factor * circular or padding == 0
