"""Models in onnxruntime, called like modules; and as rivals of the fast path."""

import sys

import pytest
import torch
from torch import nn

import secateurs as sc
from old_torch import writes_onnx
from secateurs.errors import ArgumentError, ShipError
from secateurs.ship import OnnxModule, in_onnxruntime
from secateurs.ship.fast.compiled import library
from ship.fast.fast_cases import close

pytestmark = writes_onnx
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


class Two(nn.Module):
    """Two inputs, a dictionary of outputs, any size."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(5, 4)

    def forward(self, x, y):
        total = self.a(x) + self.b(y)
        return {"sum": total, "both": (total.relu(), total * 2)}


@pytest.fixture(scope="module")
def two() -> tuple[nn.Module, OnnxModule]:
    model = Two().eval()
    return model, in_onnxruntime(model, (torch.zeros(1, 3), torch.zeros(1, 5)))


@pytest.mark.parametrize("batch", [1, 2, 9])
def test_calls_and_outputs_are_those_of_the_model(two, batch):
    model, rival = two
    x, y = torch.randn(3, batch).T, torch.randn(batch, 5)  # one is not contiguous
    with torch.inference_mode():
        found, wanted = rival(x, y=y), model(x, y=y)
    assert list(found) == ["sum", "both"] and isinstance(found["both"], tuple)
    assert close(found["sum"], wanted["sum"], 1e-5)
    assert close(found["both"][1], wanted["both"][1], 1e-5)


def test_turned_signs_are_turned(two):
    model, rival = two
    x, y = torch.randn(2, 3), torch.randn(2, 5)
    with torch.inference_mode():
        assert close(rival(x._neg_view(), y)["sum"], model(-x, y)["sum"], 1e-5)


def test_what_it_cannot_do_is_said(two):
    _, rival = two
    with pytest.raises(ArgumentError, match="cannot be trained"):
        rival.train()
    with pytest.raises(ShipError, match="no gradients"):
        rival(torch.zeros(1, 3, requires_grad=True), torch.zeros(1, 5))
    with torch.inference_mode(), pytest.raises(ArgumentError, match="refuses"):
        rival(torch.zeros(1, 4), torch.zeros(1, 5))


def test_outputs_that_are_no_tensors_are_refused():
    class Counted(nn.Linear):
        def forward(self, x):
            return super().forward(x), "text"

    with pytest.raises(ShipError, match="str beside tensors"):
        in_onnxruntime(Counted(3, 2).eval(), torch.zeros(1, 3))


@pytest.mark.skipif(library() is None, reason="no C++ compiler")
def test_of_a_program_the_model_behind_it_runs(tmp_path):
    net, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval(), torch.zeros(1, 3)
    rival = in_onnxruntime(net, x)
    for program in (sc.accelerate(net, x, tune="guess", keep="always"), rival):
        again = in_onnxruntime(program, x)
        assert again.plain is net
        with torch.inference_mode():
            assert torch.equal(again(x + 1), rival(x + 1))
        for path in (tmp_path / "net.onnx", tmp_path / "net.pt2", tmp_path / "net.c"):
            assert sc.export(program, path, x).difference < 1e-5
        net.train()
        for write in (in_onnxruntime, lambda m, x: sc.export(m, tmp_path / "net.onnx", x)):
            with pytest.raises(ArgumentError, match="call model.eval"):
                write(program, x)
        net.eval()


class Slow(nn.Module):
    """A form of a model that takes its time."""

    def __init__(self, model: nn.Module, times: int) -> None:
        super().__init__()
        self.model, self.times = model, times

    def forward(self, x):
        for _ in range(self.times):
            y = self.model(x)
        return y


@pytest.mark.parametrize("kernels", ["1", "0"])
def test_the_fastest_rival_is_kept_and_a_slow_one_is_not(kernels, monkeypatch, caplog):
    """With and without kernels; the model is made slow, so that the order is sure."""
    from secateurs.ship.fast import accelerated

    if kernels == "0":
        monkeypatch.setattr(accelerated, "library", lambda: None)
    net = nn.Sequential(nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 2)).eval()
    slow, example = Slow(net, 30).eval(), torch.zeros(1, 40)
    slower = Slow(net, 600).eval()
    kept = sc.accelerate(slow, example, tune="guess", rivals={"slower": slower})
    assert kept is not slower
    free = nn.Identity()
    kept = sc.accelerate(slow, example, tune="guess", rivals={"free": free})
    if kernels == "0":
        assert kept is free and "runs as free" in caplog.text


def test_a_rival_must_not_take_the_name_of_a_form():
    net = nn.Linear(3, 2).eval()
    with pytest.raises(ArgumentError, match="cannot be named fast"):
        sc.accelerate(net, torch.zeros(1, 3), rivals={"fast": net})


@pytest.mark.with_onnxruntime
@pytest.mark.parametrize("fastest", ["onnxruntime", "fast", "model"])
def test_onnxruntime_is_a_rival_where_it_is_installed(fastest, monkeypatch):
    """Unless nobody wants it; which of all is the fastest is chosen here."""
    from secateurs.ship.fast import accelerated

    monkeypatch.setenv("SECATEURS_TUNING", "0")
    seen = []

    def timed(forms, example):
        seen.append(set(forms))
        return {1: {name: 1.0 - 0.5 * (name == fastest) for name in forms}}

    monkeypatch.setattr(accelerated, "_time_forms", timed)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)).eval()
    example = torch.randn(1, 64)
    kept = sc.accelerate(net, example)
    kinds = {"onnxruntime": OnnxModule, "fast": sc.ship.FastModule, "model": nn.Sequential}
    assert type(kept) is kinds[fastest] and "onnxruntime" in seen[0]
    with torch.inference_mode():
        torch.testing.assert_close(kept(example), net(example), rtol=1e-4, atol=1e-5)
    sc.accelerate(net, example, rivals={})
    sc.accelerate(net, example, tune="guess")
    assert len(seen) == 3 and not any("onnxruntime" in forms for forms in seen[1:])


@pytest.mark.with_onnxruntime
@pytest.mark.parametrize("fastest", ["onnxruntime", "onnxruntime compact"])
def test_a_network_that_lost_channels_is_tried_there_before_and_after(fastest, monkeypatch):
    """With channels in sixteens EfficientNet-Lite0 takes half of the time there."""
    from secateurs.ship.fast import accelerated

    monkeypatch.setenv("SECATEURS_TUNING", "0")

    def timed(forms, example):
        assert {"onnxruntime", "onnxruntime compact"} <= set(forms)
        return {1: {name: 1.0 - 0.5 * (name == fastest) for name in forms}}

    monkeypatch.setattr(accelerated, "_time_forms", timed)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    net[0].weight.data[:5] = 0
    net[0].bias.data[:5] = 0
    example = torch.randn(3, 16)
    kept = sc.accelerate(net, example)
    assert isinstance(kept, OnnxModule)
    small = kept.plain[0].out_features == 11
    assert small == (fastest == "onnxruntime compact")
    with torch.inference_mode():
        torch.testing.assert_close(kept(example), net(example), rtol=1e-4, atol=1e-5)


@pytest.mark.with_onnxruntime
def test_onnxruntime_may_be_installed_under_another_name(monkeypatch):
    """As `onnxruntime-gpu`; and a rival of others may have its name in its own."""
    import importlib.metadata

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    monkeypatch.setenv("SECATEURS_TUNING", "0")
    net, example = nn.Linear(32, 32).eval(), torch.zeros(1, 32)
    for more in ({}, {"rivals": {"my onnxruntime": nn.Identity()}}):
        assert sc.accelerate(net, example, **more) is not None


@pytest.mark.with_onnxruntime
def test_a_model_that_onnxruntime_cannot_run_is_accelerated_without_it():
    class Counted(nn.Linear):
        def forward(self, x):
            return super().forward(x), 3

    net, example = Counted(32, 32).eval(), torch.zeros(1, 32)
    assert type(sc.accelerate(net, example)).__name__ in ("Counted", "FastModule")


@pytest.mark.with_onnxruntime
def test_a_broken_onnxruntime_is_no_rival_and_no_error(monkeypatch):
    def broken(*_):
        raise ImportError("onnxscript needs another onnx")

    # Of this name `secateurs.ship` has the function.
    monkeypatch.setattr(sys.modules["secateurs.ship.onnx"], "in_onnxruntime", broken)
    net, example = nn.Linear(32, 32).eval(), torch.zeros(1, 32)
    assert type(sc.accelerate(net, example)).__name__ in ("Linear", "FastModule")
