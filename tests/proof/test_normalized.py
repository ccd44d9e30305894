"""What counts as layered, and normalised layers."""

import copy

import pytest
import torch
from torch import nn

import secateurs as sc
from paths.layers import explicit, layered
from secateurs.paths.layered import layers_of, normalized
from tiny_networks import randomize


def test_normalised_layers(generator):
    """Hidden neurons have ℓ¹ norm 1 or 0; R and Φ stay, also with a dead neuron."""
    model = randomize(layered(3, 4, 3, 2), generator)
    with torch.no_grad():
        model[0].weight[1], model[0].bias[1] = 0.0, 0.0
    graph = sc.capture(model, torch.zeros(1, 3))
    scaled = normalized(layers_of(graph, graph.state(model)))
    other = copy.deepcopy(model)
    for layer, (weight, bias) in zip(other[::2], [(s.weight, s.bias) for s in scaled], strict=True):
        layer.weight.data, layer.bias.data = weight, bias
        if layer is not other[-1]:
            sums = layer.weight.abs().sum(1) + layer.bias.abs()
            assert all(s == pytest.approx(1.0) or s == 0.0 for s in sums.tolist())
    assert torch.allclose(explicit(model), explicit(other))
    x = torch.randn(20, 3, dtype=torch.float64)
    assert torch.allclose(model(x), other(x))


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (layered(2, 3, 1), 2),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), 1),
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), None),
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU()), None),
        (nn.Sequential(nn.Linear(2, 2), nn.LeakyReLU(), nn.Linear(2, 2)), None),
        (
            nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2).eval(), nn.ReLU(), nn.Linear(2, 2)),
            None,
        ),
    ],
)
def test_what_counts_as_layered(model, found):
    x = torch.zeros(1, 2, 2) if isinstance(model[0], nn.Flatten) else torch.zeros(1, 2)
    graph = sc.capture(model.eval(), x)
    layers = layers_of(graph, graph.state(model))
    assert (None if layers is None else len(layers)) == found
