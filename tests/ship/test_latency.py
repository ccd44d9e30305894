"""Tables of latencies: measured once, saved, read back, and the same answer each time."""

import json

import pytest
import torch
from torch import nn

from secateurs.errors import ArgumentError
from secateurs.ship import LatencyTable, LayerTimes, latency_table


def table(**changes):
    layers = (
        LayerTimes(name="a", seconds=(4.0, 3.0, 1.0)),
        LayerTimes(name="b", seconds=(2.0, 2.5, 0.5)),  # slower at a half: noise
    )
    fields = {
        "kind": "entries", "densities": (1.0, 0.5, 0.1), "layers": layers, "rest": 1.0,
        "threads": 1, "machine": "here",
    }  # fmt: skip
    return LatencyTable(**fields | changes)


def test_straight_lines_between_measured_densities():
    found = table()
    assert found.dense == 7.0 and found.seconds({}) == 7.0
    assert found.seconds({"a": 0.75}) == pytest.approx(6.5)
    assert found.seconds({"a": 0.3}) == pytest.approx(7 - 4 + 2.0)


def test_noise_never_makes_a_sparser_layer_slower():
    assert table().seconds({"b": 0.5}) == 7.0
    seconds = [table().seconds({"b": d / 100}) for d in range(1, 101)]
    assert seconds == sorted(seconds)


def test_below_the_last_density_nothing_more_is_promised():
    assert table().seconds({"a": 0.01}) == table().seconds({"a": 0.1}) == 4.0


def test_saved_and_read_back(tmp_path):
    table().save(tmp_path / "t.json")
    assert LatencyTable.load(tmp_path / "t.json") == table()
    assert "everything else" in str(table())


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "speed"}, {"densities": [0.5, 1.0, 0.1]}, {"densities": [1.0, 0.5]},
        {"rest": -1.0}, {"rest": None}, {"layers": [{"name": "a"}]}, {"densities": []},
    ],
)  # fmt: skip
def test_a_file_that_is_no_table_is_refused(tmp_path, change):
    path = tmp_path / "t.json"
    table().save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ArgumentError, match="not a table of latencies"):
        LatencyTable.load(path)


NET = nn.Sequential(
    nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 8, 3, groups=2),
    nn.ConvTranspose2d(8, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 8),
    nn.Linear(8, 8),
).eval()  # fmt: skip
X = torch.randn(2, 4, 9, 9)


def test_every_layer_is_timed_and_the_model_left_alone():
    before = {name: p.clone() for name, p in NET.named_parameters()}
    told = []
    found = latency_table(NET, X, kind="channels", densities=(1, 0.25), progress=told.append)
    assert [one.name.split(".")[0] for one in found.layers] == list("023478")
    assert all(s > 0 for one in found.layers for s in one.seconds) and found.rest >= 0
    # Two layers of one form are measured once.
    assert found.layers[-1].seconds == found.layers[-2].seconds and len(told) == 5
    assert all(torch.equal(before[name], p) for name, p in NET.named_parameters())


def test_entries_run_through_the_kernels():
    net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    found = latency_table(net, torch.zeros(1, 16), densities=(1, 0.1))
    assert found.kind == "entries" and len(found.layers) == 2
    assert found.threads == torch.get_num_threads()


def test_a_layer_of_another_class_counts_as_dense():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 3))

        def forward(self, x):
            return x @ self.weight.T

    (layer,) = latency_table(
        Own().eval(), torch.zeros(2, 3), kind="channels", densities=(1, 0.5)
    ).layers
    assert layer.name == "weight"


def test_bad_questions():
    with pytest.raises(ArgumentError, match="kind='speed'"):
        latency_table(NET, X, kind="speed")
    for densities in ((0.5, 0.1), (1, 1), (1, 0), (), (1, 0.1, 0.5)):
        with pytest.raises(ArgumentError, match="decrease from 1"):
            latency_table(NET, X, densities=densities)
