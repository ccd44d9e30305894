"""Dynamic-int8 copies: refused in words that help, and certified in their weights."""

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import UnsupportedOperation
from secateurs.graph import dequantized
from secateurs.graph.capture import quantized_layers

torch_ao = pytest.importorskip("torch.ao.quantization")


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.body = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3, bias=False))

    def forward(self, x):
        return self.body(self.conv(x).relu().flatten(1))


def rounded(model, dtype=torch.qint8):
    return torch_ao.quantize_dynamic(model, {nn.Linear}, dtype=dtype)


@pytest.fixture
def pair():
    torch.manual_seed(0)
    model = Mixed().eval()
    return model, rounded(model)


def test_the_copy_itself_is_refused_with_both_ways_out(pair):
    dense, quantized = pair
    x = torch.zeros(1, 1, 4, 4)
    for call in (
        lambda: sc.capture(quantized, x),
        lambda: sc.certify(dense, quantized, around=x, radius=0.1),
        lambda: sc.path_norm(quantized, x),
    ):
        with pytest.raises(UnsupportedOperation) as error:
            call()
        for word in (
            "2 quantised layer(s): 'body.0', 'body.2'",
            "dequantized(model)",
            "data=inputs",
        ):
            assert word in str(error.value)


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
def test_its_weights_are_certified(dtype, pair):
    dense, _ = pair
    plain = dequantized(rounded(dense, dtype))
    x = torch.randn(4, 1, 4, 4)
    cert = sc.certify(dense, plain, around=x, radius=0.05)
    assert 0 < cert.lower_bound <= cert.bound < 0.1
    weight = rounded(dense, dtype).body[0].weight()
    assert torch.equal(plain.body[0].weight, weight.dequantize().float())
    assert plain.body[2].bias is None and not plain.training


def test_the_way_for_the_model_itself_works(pair):
    dense, quantized = pair
    seen = sc.proof.statistical(dense, quantized, data=torch.randn(50, 1, 4, 4))
    assert seen.largest > 0


def test_a_single_layer_and_a_model_without_any():
    layer = rounded(nn.Sequential(nn.Linear(3, 2)))[0]
    assert isinstance(dequantized(layer), nn.Linear)
    model = nn.Sequential(nn.Linear(3, 2))
    same = dequantized(model)
    assert same is not model and torch.equal(same[0].weight, model[0].weight)
    assert quantized_layers(model) == []


def test_static_convolutions_come_back_whole():
    """A convolution quantised for static use keeps stride, padding and groups."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2)).eval()
    model.qconfig = torch_ao.get_default_qconfig(torch.backends.quantized.engine)
    prepared = torch_ao.prepare(nn.Sequential(torch_ao.QuantStub(), model))
    prepared(torch.randn(8, 2, 6, 6))
    converted = torch_ao.convert(prepared)
    names = quantized_layers(converted)
    assert names
    plain = dequantized(converted[1])
    x = torch.randn(2, 2, 6, 6)
    assert plain[0](x).shape == model[0](x).shape
    assert float((plain[0](x) - model[0](x)).abs().max()) < 0.1


def test_a_recurrent_layer_has_no_copy():
    lstm = torch_ao.quantize_dynamic(nn.Sequential(nn.LSTM(2, 2)), {nn.LSTM})
    with pytest.raises(UnsupportedOperation, match="quantised LSTM"):
        dequantized(lstm)
