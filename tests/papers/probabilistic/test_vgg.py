"""Figure 2 of the probabilistic paper: layers counted, their histograms whole, weights at hand."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from experiments import probabilistic
from secateurs.errors import DataError
from secateurs_lab.data import from_tensors


@pytest.fixture
def few(monkeypatch):
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(64, 1, 28, 28, generator=draw), torch.arange(64) % 10
    made = from_tensors("few", train_x=x, train_y=y, test_x=x, test_y=y)
    monkeypatch.setattr(probabilistic.data, "load", lambda name: made)
    return made


@pytest.mark.slow
def test_every_layer_before_and_after_training(few):
    before, after = (list(job.work()) for job in probabilistic.jobs("smoke"))
    for rows in (before, after):
        assert [row["kind"] for row in rows] == ["convolution"] * 13 + ["linear"] * 3
    assert before[0]["variance"] != after[0]["variance"]
    entries = {1: 3 * 3 * 64, 2: 64 * 64 * 9}
    for number, size in entries.items():
        counts = before[number - 1]["counts"].split()
        assert sum(map(int, counts)) == size
    notes = {each.note for each in probabilistic.compare([_text(row) for row in before])}
    assert "close" in notes


def test_the_distance_tells_normal_weights_from_others():
    draw = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 200))
    with torch.no_grad():
        model[0].weight.normal_(generator=draw)
        model[1].weight.uniform_(generator=draw)
    normal, other = probabilistic.compare(
        [_text(row) for row in probabilistic.rows_of("two", model)]
    )
    assert normal.note == "close" and normal.ours[0] < 0.01
    assert other.note == "" and other.ours[0] > 0.05


def test_a_border_makes_the_images_large_enough(few):
    wide = probabilistic.padded(few)
    assert wide.size == 32
    assert torch.equal(wide.train_x[:, :, 2:30, 2:30], few.train_x)
    assert wide.train_x[:, :, :2].abs().max() == 0


def test_the_published_weights_are_read_where_they_lie(tmp_path, monkeypatch):
    monkeypatch.setenv("SECATEURS_DATA", str(tmp_path))
    (job,) = probabilistic.jobs("full")
    with pytest.raises(DataError, match="save_file"):
        list(job.work())
    weights = {"features.0.weight": torch.randn(64, 3, 3, 3)}
    save_file(weights, tmp_path / probabilistic.WEIGHTS)
    (row,) = job.work()
    assert row["kind"] == "convolution" and row["network"] == "vgg-16, ImageNet"


def _text(row):
    return {name: str(value) for name, value in row.items()}
