"""The demo in miniature: everything it does, on a few steps."""

import csv
import io

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from secateurs import demo
from secateurs.data import from_tensors
from secateurs.masks import load_masks
from secateurs.models import build
from secateurs.ship import read_sparse
from secateurs.train import load_model_, read_checkpoint

SMALL = demo.Settings(
    sparsities=(0.5, 0.9), dense="30it", tuning="5it", batch=32, rounds=3
)


@pytest.fixture(scope="module")
def data():
    """Three bright spots to tell apart: enough for a few steps to learn."""
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(0, 3, (200,), generator=draw)
    x = torch.nn.functional.one_hot(y, 16).float().view(
        -1, 1, 4, 4
    ) + 0.1 * torch.randn(200, 1, 4, 4, generator=draw)
    return from_tensors(
        "spots", train_x=x[:150], train_y=y[:150], test_x=x[150:], test_y=y[150:]
    )


@pytest.fixture(scope="module")
def made(data, tmp_path_factory):
    """One run: (outcome, folder, what was printed)."""
    folder, text = tmp_path_factory.mktemp("demo") / "out", io.StringIO()
    return (
        demo.run(
            folder, data=data, settings=SMALL, console=Console(file=text, width=120)
        ),
        folder,
        text.getvalue(),
    )


def test_every_method_at_every_sparsity_meets_its_budget(made):
    outcome, _, _ = made
    assert [(row.method, row.asked_sparsity) for row in outcome.rows] == [
        (name, share) for name in demo.METHODS for share in SMALL.sparsities
    ]
    assert len(demo.METHODS) >= 5
    assert all(
        row.sparsity == pytest.approx(row.asked_sparsity, abs=0.01)
        for row in outcome.rows
    )
    assert all(
        row.compression == pytest.approx(1 / (1 - row.sparsity)) for row in outcome.rows
    )
    assert outcome.bench.dense_accuracy > 0.9


def test_the_checkpoints_are_plain_and_the_pruned_one_has_the_zeros_of_the_masks(
    made, data
):
    outcome, folder, _ = made
    pruned, masks = (
        load_file(folder / "pruned.safetensors"),
        load_masks(folder / "masks.safetensors"),
    )
    model = build("lenet-300-100", size=4, classes=3)
    assert pruned.keys() == model.state_dict().keys()
    load_masks(
        folder / "masks.safetensors", load_model_(model, folder / "pruned.safetensors")
    )
    assert all(not pruned[name][~mask].any() for name, mask in masks.items())
    kept = sum(int(mask.sum()) for mask in masks.values()) / sum(
        mask.numel() for mask in masks.values()
    )
    assert 1 - kept == pytest.approx(outcome.best.sparsity)
    assert (
        read_checkpoint(folder / "dense.safetensors").notes["arch"] == "lenet-300-100"
    )


def test_the_best_is_the_sparsest_within_a_point_of_the_dense_network(made):
    outcome, _, _ = made
    close = [
        row
        for row in outcome.rows
        if row.accuracy >= outcome.bench.dense_accuracy - 0.01
    ]
    assert close and outcome.best.asked_sparsity == max(
        row.asked_sparsity for row in close
    )


def test_results_are_shown_and_written_as_csv_and_markdown(made):
    outcome, folder, text = made
    assert all(name in text for name in demo.METHODS) and "written to" in text
    with (folder / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == [row.method for row in outcome.rows]
    assert float(rows[0]["accuracy"]) == outcome.rows[0].accuracy
    assert (folder / "results.md").read_text().count("\n| ") == len(outcome.rows) + 2


def test_the_seed_decides_everything_but_the_clock(data, made, tmp_path):
    again = demo.run(
        tmp_path, data=data, settings=SMALL, console=Console(file=io.StringIO())
    )
    assert [row.accuracy for row in again.rows] == [
        row.accuracy for row in made[0].rows
    ]
    assert (tmp_path / "pruned.safetensors").read_bytes() == (
        made[1] / "pruned.safetensors"
    ).read_bytes()


def test_a_method_and_a_section_are_added_by_one_line_each(data, tmp_path, monkeypatch):
    def untouched(bench, sparsity):
        masks = {
            name: torch.ones_like(p, dtype=torch.bool)
            for name, p in bench.dense.named_parameters()
        }
        return demo.Candidate(model=bench.dense, masks=masks, tune=False)

    methods = {"nothing": untouched}
    monkeypatch.setattr("secateurs.demo.compare.METHODS", methods)
    monkeypatch.setattr(
        "secateurs.demo.compare.SECTIONS",
        [lambda outcome: f"best: {outcome.best.method}"],
    )
    text = io.StringIO()
    outcome = demo.run(tmp_path, data=data, settings=SMALL, console=Console(file=text))
    assert "best: nothing" in text.getvalue()
    assert [row.accuracy for row in outcome.rows] == [outcome.bench.dense_accuracy] * 2


def test_the_digits_do_where_fashion_mnist_is_missing(monkeypatch, tmp_path):
    pytest.importorskip("sklearn")
    from secateurs.demo.compare import _data
    from secateurs.errors import DataError

    def load(name):
        if name == "digits":
            return name
        raise DataError("not here")

    monkeypatch.setattr("secateurs.demo.compare.load", load)
    text = io.StringIO()
    assert (
        _data(Console(file=text)) == "digits"
        and "not on this machine" in text.getvalue()
    )


def test_it_ends_with_the_smaller_model_its_file_the_measured_table_and_the_certificate(
    made,
):
    outcome, folder, text = made
    ends = [
        text.index(words)
        for words in ("Compacted exactly", "MACs left", "provably keep")
    ]
    assert ends == sorted(ends) and text.index("written to") > ends[-1]
    file = read_sparse(folder / "shipped.safetensors")
    assert file.certificate["bound"] > 0 and file.notes["arch"] == "lenet-300-100"
    assert file.sizes.bytes < (folder / "pruned.safetensors").stat().st_size
    assert all(
        torch.equal(file.tensors[name], value)
        for name, value in outcome.candidate.model.state_dict().items()
    )
