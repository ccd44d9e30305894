"""The default start redraws weights: said where they were trained, silent where they are fresh."""

import math

import pytest
import torch
from torch import nn

from secateurs.optim import Factorized, FactorizedSGD
from secateurs.optim.factorized.start import SIGMAS, SPIKE, _excess, _standing_out, looks_trained

INITS = [
    *(nn.init.kaiming_uniform_, nn.init.kaiming_normal_, nn.init.xavier_uniform_),
    *(
        nn.init.trunc_normal_,
        nn.init.orthogonal_,
        nn.init.ones_,
        nn.init.zeros_,
        nn.init.eye_,
    ),
]


def trained():
    """Two classes told apart by a few of forty inputs, learned to the end."""
    x = torch.randn(256, 40)
    y = (x[:, :3].sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(40, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("shape", [(64, 48), (32, 16, 3, 3)])
def test_fresh_weights_look_fresh(init, shape):
    if init is nn.init.eye_ and len(shape) > 2:
        shape = shape[:2]
    assert not any(looks_trained(init(torch.empty(shape))) for _ in range(20))


@pytest.mark.parametrize(
    "layer", [nn.LSTM(32, 32), nn.MultiheadAttention(32, 4), nn.Bilinear(20, 20, 20)]
)
def test_fresh_modules_look_fresh(layer):
    assert not any(looks_trained(p) for p in layer.parameters())


def test_one_strong_direction_is_seen():
    """What weak training adds: rows and columns still differ by no more than chance."""
    draw = torch.randn(96, 128)
    left, right = (nn.functional.normalize(torch.randn(n), dim=0) for n in draw.shape)
    strength = 1.5 * (math.sqrt(96) + math.sqrt(128))
    matrix = draw + strength * torch.outer(left, right)
    squares = matrix.double().square()
    assert max(_excess(squares), _excess(squares.T)) < SIGMAS
    assert not looks_trained(draw)
    assert looks_trained(matrix) and looks_trained(1e-3 * matrix.T + 7)
    assert not looks_trained(matrix * math.nan)


def test_rows_of_different_size_are_seen():
    """No direction stands out; only the mean squares of the rows do."""
    matrix = torch.randn(128, 128, generator=torch.Generator().manual_seed(0))
    assert not looks_trained(matrix)
    matrix[::2] *= 1.5
    assert _standing_out(matrix) < SPIKE / 2
    assert looks_trained(matrix) and looks_trained(matrix.T)


@pytest.mark.parametrize(
    "make",
    [
        lambda p, **k: FactorizedSGD(p, **k),
        lambda p, **k: Factorized(p, base=torch.optim.AdamW, **k),
    ],
)
def test_a_trained_model_is_warned_about(make, caplog):
    model = trained()
    make(model.named_parameters())
    (record,) = caplog.records
    assert "'0.weight'" in record.getMessage() and "init='pretrained'" in record.getMessage()


def test_a_few_steps_are_seen_by_the_gradient_they_leave(caplog):
    """Ten steps do not show in the weights; whoever fine-tunes has just made them."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).square().sum().backward()
        optimizer.step()
    assert not any(looks_trained(p) for p in model.parameters())
    FactorizedSGD(model.named_parameters())
    (record,) = caplog.records
    assert "init='pretrained'" in record.getMessage()


@pytest.mark.parametrize("init", ["pretrained", "dwf"])
def test_a_named_start_is_silent(init, caplog):
    model = trained()
    before = model[0].weight.detach().clone()
    FactorizedSGD(model.named_parameters(), init=init)
    assert not caplog.records
    assert torch.allclose(before, model[0].weight, atol=1e-6) == (init == "pretrained")


def test_the_default_start_is_dwf_and_a_fresh_model_is_silent(caplog):
    made = []
    for init in (None, "dwf"):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(40, 32), nn.Linear(32, 20))
        optimizer = FactorizedSGD(model.named_parameters(), init=init)
        made.append([p.detach().clone() for p in model.parameters()])
        assert optimizer.param_groups[0]["init"] == "dwf"
    assert all(torch.equal(a, b) for a, b in zip(*made, strict=True))
    assert not caplog.records
