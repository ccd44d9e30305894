"""Figures of a measurement: counts exactly, times plausibly, verdicts in words."""

import csv
import json
import time
from dataclasses import replace
from io import StringIO
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import ArgumentError, ShipError
from secateurs.files import save_sparse
from secateurs.ship import FormFigures, Latency, Measured, export, measure
from secateurs.ship.measure import peak_memory


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 5)).eval()
    model[0].weight.data[10:] = 0
    return model


X = torch.randn(1, 20)


def test_counts_are_exact_and_forms_compared(tmp_path):
    sizes = save_sparse(network(), tmp_path / "m.safetensors")
    slow = SlowTwin(network())
    table = measure({"plain": network(), "slow": slow}, X, batch_sizes=(1, 3), seconds=0.05)
    plain, other = table.forms
    assert plain.parameters == 20 * 40 + 40 + 40 * 5 + 5
    assert plain.nonzero == 20 * 10 + 40 + 40 * 5 + 5
    assert plain.macs == 20 * 10 + 40 * 5
    assert plain.file_bytes == sizes.bytes and plain.dense_bytes == sizes.dense_bytes
    assert other.difference == pytest.approx(0.5)
    assert table.threads == torch.get_num_threads()
    for latency in (*plain.latency.values(), *other.latency.values()):
        assert 0 < latency.low <= latency.median <= latency.high
    assert other.latency[1].low >= 0.005
    assert "slower at batch 1" in table.verdict(other)


def test_both_memory_formats_stand_beside_each_other():
    convolution = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(36, 2))
    fast = sc.accelerate(convolution.eval(), IMAGE, tune="guess", keep="always")
    forms = {"dense": convolution, "program": fast, "function": convolution.forward}
    table = measure(forms, IMAGE, batch_sizes=(1,), seconds=0.05, channels_last=True)
    names = [form.name for form in table.forms]
    assert names == ["dense", "dense, channels last", "program", "function"]
    assert all(form.difference < 1e-5 for form in table.forms)
    # The given one stays as it is.
    assert convolution[0].weight.is_contiguous()
    with pytest.raises(ArgumentError, match="already called 'dense, channels last'"):
        twice = {"dense": convolution, "dense, channels last": convolution}
        measure(twice, IMAGE, batch_sizes=(1,), seconds=0.05, channels_last=True)


IMAGE = torch.randn(1, 3, 5, 5)


class SlowTwin(nn.Module):
    """Half of the answer, after five milliseconds."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner.eval()
        self.train(False)

    def forward(self, x):
        time.sleep(0.005)
        return self.inner(x) / 2


def form(name, ms, size, first=1000):
    latency = {1: Latency(median=ms / 1e3, low=ms / 1e3, high=ms / 1e3)}
    return FormFigures(
        name=name, dense_bytes=first, file_bytes=size, parameters=1, nonzero=1, macs=1,
        memory=None, difference=0.0, latency=latency,
    )  # fmt: skip


TABLE = Measured(
    forms=(
        form("dense", 1.0, 1000),
        form("same", 0.97, 960),
        form("fast", 0.1, 100),
        form("<slow>", 2.0, 1000),
    ),
    batch_sizes=(1,),
    threads=1,
    machine="a machine",
)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (0, "what the others are compared with"),
        (1, "no gain"),
        (2, "10× faster at batch 1; file 10× smaller"),
        (3, "2× slower at batch 1"),
    ],
)
def test_the_verdict_says_gain_no_gain_or_loss(index, words):
    assert TABLE.verdict(TABLE.forms[index]) == words
    assert "no gain" in str(TABLE)


@pytest.mark.parametrize(
    ("median", "low", "words"),
    [
        (
            0.1,
            1.0,
            "no gain",
        ),  # somebody else computed while the first form was called
        (0.1, 1.1, "no gain"),  # the two do not even agree which is faster
        (0.1, 0.5, "2× faster at batch 1"),  # the more careful of the two is said
        (4.0, 2.0, "2× slower at batch 1"),
    ],
)
def test_a_gain_is_said_where_medians_and_best_calls_agree(median, low, words):
    odd = {1: Latency(median=median / 1e3, low=low / 1e3, high=1e-2)}
    forms = (TABLE.forms[0], replace(TABLE.forms[3], latency=odd))
    table = replace(TABLE, forms=forms)
    assert table.verdict(forms[1]) == words


def test_the_table_as_csv_json_and_picture(tmp_path):
    rows = list(csv.DictReader(StringIO(TABLE.to_csv())))
    assert [row["name"] for row in rows] == ["dense", "same", "fast", "<slow>"]
    assert rows[2]["median_ms"] == "0.1" and rows[2]["memory"] == ""
    assert json.loads(TABLE.to_json())["forms"][2]["verdict"].startswith("10× faster")
    picture = ElementTree.fromstring(TABLE.to_svg())
    texts = [node.text for node in picture.iter() if node.tag.endswith("text")]
    assert "<slow>" in texts and "milliseconds a call, batch 1, 1 thread(s)" in texts
    lengths = [float(node.get("width")) for node in picture.iter() if node.tag.endswith("rect")]
    assert lengths[0] == pytest.approx(10 * lengths[2], rel=0.01)
    for suffix in ("csv", "json", "svg"):
        assert TABLE.save(tmp_path / f"t.{suffix}").stat().st_size > 100
    with pytest.raises(ArgumentError, match=".png"):
        TABLE.save(tmp_path / "t.png")


def test_files_and_functions_are_forms(tmp_path):
    model = network()
    export(model, tmp_path / "m.pt2", X)
    forms = {
        "module": model,
        "file": tmp_path / "m.pt2",
        "function": lambda x: model(x),
    }
    table = measure(forms, X, batch_sizes=(2,), seconds=0.02)
    assert [f.difference for f in table.forms] == [0, 0, 0]
    assert table.forms[1].file_bytes == (tmp_path / "m.pt2").stat().st_size
    assert table.forms[2].file_bytes is None and table.forms[2].parameters is None


class Undecided(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_what_no_graph_covers_is_timed_without_multiplications():
    table = measure({"odd": Undecided().eval()}, X, batch_sizes=(1,), seconds=0.02)
    assert table.forms[0].macs is None


def test_peak_memory_sees_what_a_call_takes():
    size = 64 << 20
    taken = peak_memory(lambda: bytearray(size).count(1))
    assert taken is None or 0.9 * size < taken < 2 * size


def test_wrong_calls_are_refused(tmp_path):
    model = network()
    with pytest.raises(ArgumentError, match="no form"):
        measure({}, X)
    with pytest.raises(ArgumentError, match="batch_sizes"):
        measure({"m": model}, X, batch_sizes=(0,))
    with pytest.raises(ArgumentError, match="seconds"):
        measure({"m": model}, X, seconds=0)
    with pytest.raises(ArgumentError, match="'m' is in training mode"):
        measure({"m": nn.Linear(2, 2)}, X)
    with pytest.raises(ArgumentError, match="'m' is a int"):
        measure({"m": 3}, X)
    with pytest.raises(ShipError, match="does not exist"):
        measure({"m": tmp_path / "none.pt2"}, X)
    with pytest.raises(ArgumentError, match="was not measured"):
        TABLE.speedup("fast", 64)
