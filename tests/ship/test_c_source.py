"""The C file: compiled as strict C99 without a warning, and equal to the network."""

import ctypes
import shutil
import subprocess

import pytest
import torch
from torch import nn

import secateurs as sc
import secateurs_lab as lab
from secateurs.errors import ShipError
from secateurs.ship import c_source as module
from secateurs.ship.c_source import c_source

CC = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
pytestmark = pytest.mark.skipif(CC is None, reason="no C compiler")


def predict(model: nn.Module, x: torch.Tensor, folder) -> torch.Tensor:
    """What the compiled C file says."""
    source, library = folder / "net.c", folder / "net.so"
    source.write_text(c_source(model, x[:1]))
    flags = ["-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([CC, *flags, str(source), "-o", str(library)], check=True)
    with torch.inference_mode():
        y = torch.full_like(model(x), float("nan"), dtype=torch.float32)
    call = ctypes.CDLL(str(library)).predict
    for image, row in zip(x.float().contiguous(), y, strict=True):
        call(ctypes.c_void_p(image.data_ptr()), ctypes.c_void_p(row.data_ptr()))
    return y


def equal(model: nn.Module, x: torch.Tensor, folder) -> bool:
    model.eval()
    with torch.inference_mode():
        wanted = model(x)
    found = predict(model, x, folder)
    return bool((found - wanted).abs().max() <= 1e-5 * wanted.abs().max())


@pytest.mark.parametrize(
    ("name", "density"),
    [
        ("lenet-300-100", 0.003),
        # Nothing but more lines of the same kind, for a compiler that takes eight seconds.
        pytest.param("lenet-300-100", 0.1, marks=pytest.mark.slow),
        ("lenet-5", 0.003),
        ("lenet-5", 0.1),
    ],
)
def test_named_networks(name, density, tmp_path):
    model = lab.models.build(name)
    sc.prune_(model, "magnitude", density=density)
    assert equal(model, torch.randn(4, 1, 28, 28), tmp_path)


class Everything(nn.Module):
    """Grouped and strided convolutions, a skip, a cat, pools, a shuffle, leaky and capped ReLUs,
    and one slope for each channel.
    """

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2)
        self.b = nn.Conv2d(4, 4, (3, 1), padding=(2, 0), dilation=(2, 1))
        self.norm, self.fc = nn.BatchNorm2d(8), nn.Linear(8 * 9, 70)
        self.last = nn.Linear(70, 3)
        self.bent, self.flat = nn.PReLU(8), nn.PReLU(70)
        for each in (self.bent, self.flat):
            nn.init.uniform_(each.weight, -0.5, 1.5)

    def forward(self, x):
        x = nn.functional.leaky_relu(self.a(x), 0.2)
        x = torch.cat([nn.functional.relu6(x + self.b(x)), x], 1)
        x = nn.functional.max_pool2d(self.bent(self.norm(x)), 2, ceil_mode=True)
        x = nn.functional.avg_pool2d(x, 2, 1, padding=1).flip(1)
        return self.last(self.flat(self.fc(x.flatten(1)[:, : 8 * 9])))


def test_every_operation(tmp_path):
    model = Everything()
    nn.init.normal_(model.norm.running_mean)
    assert equal(model, torch.randn(3, 2, 7, 7), tmp_path)


class Difference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 4), nn.Linear(5, 4)

    def forward(self, x):
        return torch.relu(self.a(x)) - torch.relu(self.b(x))


def test_a_difference_is_no_sum(tmp_path):
    assert equal(Difference(), torch.randn(3, 5), tmp_path)


def test_tables_where_straight_code_would_be_long(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "UNROLLED", 0)
    assert equal(Everything(), torch.randn(3, 2, 7, 7), tmp_path)


def test_numbers_are_the_floats_themselves(tmp_path):
    layer = nn.Linear(3, 3, bias=False)
    layer.weight.data = torch.tensor([[1 / 3, 0, 0], [0, 1e-38, 0], [0, 0, 123456789.0]])
    found = predict(layer.eval(), torch.eye(3), tmp_path)
    assert torch.equal(found, layer.weight.data.T.contiguous())


def test_the_file_says_what_it_needs():
    layer = nn.Linear(5, 4, bias=False).eval()
    layer.weight.data[1:] = 0
    text = c_source(layer, torch.zeros(1, 5))
    assert "reads 5 floats, writes 4" in text
    assert "0 bytes of tables, 0 bytes of static memory, 5 products" in text


def test_neurons_nobody_reads_are_not_computed():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    model[2].weight.data[:, 1] = 0
    text = c_source(model, torch.zeros(1, 4))
    assert "(memory + 0)[0] =" in text and "(memory + 0)[1] =" not in text


def test_what_has_no_c_is_refused_by_name():
    model = nn.Sequential(nn.Linear(3, 2), nn.Sigmoid()).eval()
    with pytest.raises(ShipError, match=r"aten.sigmoid.default at 1 \(Sigmoid\)"):
        c_source(model, torch.zeros(1, 3))


def test_one_input_and_one_output():
    class Two(nn.Module):
        def forward(self, x, y):
            return x + y

    with pytest.raises(ShipError, match="2 inputs and 1 outputs"):
        c_source(Two().eval(), [torch.zeros(1, 3), torch.zeros(1, 3)])


@pytest.mark.parametrize("at", range(4))
def test_a_maximum_of_nan_is_nan_wherever_it_lies(at, tmp_path):
    model, x = nn.Sequential(nn.Conv2d(1, 1, 1), nn.MaxPool2d(2)).eval(), torch.zeros(1, 1, 2, 2)
    x.view(-1)[at] = float("nan")
    assert predict(model, x, tmp_path).isnan().all()


def test_infinite_weights_are_written(tmp_path):
    layer = nn.Linear(1, 3).eval()
    with torch.no_grad():
        layer.weight[:, 0] = torch.tensor([torch.inf, -torch.inf, 1.0])
        layer.bias[:] = torch.tensor([0.0, 0.0, torch.inf])
    x = torch.ones(1, 1)
    assert torch.equal(predict(layer, x, tmp_path), layer(x))


def test_a_class_may_have_any_name(tmp_path):
    named = type("X */ int evil; /*\n??/", (nn.Linear,), {})(2, 1).eval()
    assert "evil;" not in c_source(named, torch.zeros(1, 2))
    assert equal(named, torch.ones(1, 2), tmp_path)
