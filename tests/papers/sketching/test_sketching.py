"""The experiments of the sketching paper run at small scale and carry the published figures beside
them.
"""

from dataclasses import replace

import pytest
import torch

from experiments import sketching
from experiments.sketching import (
    FULL,
    METHODS,
    PAPER,
    SMALL,
    AccuracyRow,
    SketchingSettings,
    accuracy_jobs,
    accuracy_table,
    as_table,
    compare_accuracies,
    draw_by_magnitude,
    load_data,
    nearest,
    noise,
    published_figures,
    run,
    tickets,
)
from secateurs.errors import ArgumentError
from secateurs.masks import select
from secateurs_lab.data import from_tensors

pytest.importorskip("sklearn")

TINY = replace(
    SMALL,
    seeds=(0,),
    densities=(0.05,),
    length="2ep",
    drops=("1ep",),
    rewind_to="2it",
)


@pytest.fixture(scope="module")
def rows() -> list[AccuracyRow]:
    return accuracy_table(TINY)


def test_every_method_has_a_row_and_learns(rows):
    assert [row.method for row in rows] == list(METHODS)
    assert all(row.density == 0.05 and row.runs == 1 and 0 <= row.accuracy <= 100 for row in rows)
    assert max(row.accuracy for row in rows) > 50


def test_rows_of_an_experiment_have_their_accuracy_in_percent(monkeypatch):
    monkeypatch.setattr("experiments.sketching.run", lambda *_: 0.875)
    job = accuracy_jobs("smoke")[0]
    (row,) = job.work()
    assert row["accuracy"] == 87.5 and row["density"] <= 1


def test_the_table_is_reproducible(rows):
    again = accuracy_table(
        replace(TINY, methods=("snip-unsupervised+sparse-data+random-mask", "synflow-chi"))
    )
    known = {row.method: row for row in rows}
    assert all(known[row.method] == row for row in again)


def test_the_published_figures_stand_beside():
    figures = published_figures()
    assert len(figures) == 24 + 12
    assert figures["cifar-10", "vgg-19", 0.05, "snip-supervised"] == (91.66, 0.25)
    assert figures["tiny-imagenet", "resnet-18", 0.02, "synflow+random-mask"] == (
        55.56,
        None,
    )
    assert {key[3] for key in figures} <= set(METHODS)
    row = AccuracyRow(
        data="cifar-10",
        model="vgg-19",
        density=0.05,
        method="snip-supervised",
        accuracy=90.0,
        std=0.1,
        runs=3,
        published=91.66,
        published_std=0.25,
    )
    assert list(as_table([row]).columns[-1].cells) == ["91.66 ± 0.25"]


def test_the_defaults_are_the_published_settings():
    assert SketchingSettings() == PAPER
    assert (PAPER.batch, PAPER.rate, PAPER.decay, PAPER.length, PAPER.drops) == (
        128,
        0.1,
        1e-4,
        "160ep",
        ("80ep", "120ep"),
    )
    assert (
        PAPER.score_examples == 256 and METHODS["synflow"].rounds == 100 and len(PAPER.seeds) == 3
    )


def test_an_unknown_method_is_refused():
    with pytest.raises(ArgumentError, match="no method 'snipp'"):
        SketchingSettings(methods=("snipp",))


def test_kept_weights_are_large_ones():
    bins = sketching.magnitudes(TINY)
    for name in ("all", "synflow", "imp", "uniform"):
        assert sum(bin.shares[name] for bin in bins) == pytest.approx(1, abs=1e-5)
    mean = {
        name: sum((bin.low + bin.high) / 2 * bin.shares[name] for bin in bins)
        for name in bins[0].shares
    }
    assert mean["synflow"] > mean["uniform"] and mean["imp"] > mean["uniform"]


def test_the_norm_under_imp_is_larger_than_under_random_masks():
    rows = sketching.norms(TINY, sparsity=0.6)
    assert [round(row.sparsity, 2) for row in rows] == [0.2, 0.36, 0.49, 0.59, 0.6]
    assert all(row.random < row.imp <= row.whole for row in rows)
    assert rows[0].random == pytest.approx(rows[0].whole * 0.8**0.5, rel=0.02)


def test_the_threshold_keeps_no_small_score_and_the_random_mask_some():
    bins = sketching.kept_scores(TINY)
    first = {
        name: next(i for i, bin in enumerate(bins) if bin.shares[name] > 0)
        for name in bins[0].shares
    }
    assert first["threshold"] >= first["random mask"] >= first["all"]


def test_a_draw_from_signed_scores_keeps_the_counts_of_the_threshold():
    draw = torch.Generator().manual_seed(0)
    scores = {
        "a": torch.randn(30, 30, generator=draw),
        "b": 3 * torch.randn(50, generator=draw),
    }
    masks = draw_by_magnitude(scores, 0.1, draw)
    cut = select(scores, density=0.1)
    assert {n: int(m.sum()) for n, m in masks.items()} == {n: int(m.sum()) for n, m in cut.items()}
    assert bool((scores["a"][masks["a"]] < 0).any()), "large negative scores can be drawn"


def test_a_draw_from_signed_scores_is_in_proportion_to_magnitudes():
    """One weight of four, 400 draws: each share within five standard errors."""
    scores, draws = {"w": torch.tensor([1.0, -2.0, 3.0, -4.0])}, 400
    source = torch.Generator().manual_seed(1)
    hits = sum(draw_by_magnitude(scores, 0.25, source)["w"].double() for _ in range(draws))
    wanted = scores["w"].abs().double() / 10
    error = (wanted * (1 - wanted) / draws).sqrt()
    assert bool(((hits / draws - wanted).abs() < 5 * error).all())


def test_tickets_meet_the_printed_densities_and_noise_is_no_data():
    dataset = load_data(TINY)
    found = tickets(TINY, dataset, sparsity=0.9, seed=0)
    assert len(found) == 10
    assert nearest(found, 0.1).density == pytest.approx(0.1, rel=0.005)
    assert nearest(found, 0.5).density == pytest.approx(0.5, rel=0.02)
    drawn = noise(dataset, 0)
    assert (
        torch.equal(drawn.test_x, dataset.test_x) and drawn.train_x.shape == dataset.train_x.shape
    )
    assert drawn.train_x.mean() == pytest.approx(dataset.mean[0], abs=0.01)


def test_drawn_masks_stand_beside_top_k_and_print():
    row = {"data": "d", "model": "m", "density": "0.05", "seed": "0"}
    rows = [
        {**row, "method": name, "accuracy": str(a)}
        for name, a in (("synflow", 80.0), ("synflow+random-mask", 82.5))
    ]
    figures = {figure.what: figure for figure in compare_accuracies(rows)}
    change = figures["m on d, 5%, synflow: drawn less top-k, points"]
    assert change.ours == (2.5,) and change.printed == pytest.approx(
        (58.57 - 57.63 + 58.84 - 57.49) / 2, abs=0.006
    )


SHAPES = {"cifar-10": (32, 10), "cifar-100": (32, 100), "tiny-imagenet": (64, 200)}


@pytest.mark.slow
@pytest.mark.parametrize("settings", FULL, ids=lambda s: f"{s.model} {s.data}")
def test_the_first_two_steps_of_the_published_recipe(settings):
    """On random images, four at a time: classes, image size, augmentation and network fit."""
    side, classes = SHAPES[settings.data]
    draw = torch.Generator().manual_seed(0)
    x, y = (
        torch.rand(8, 3, side, side, generator=draw),
        torch.randint(classes, (8,), generator=draw),
    )
    made = from_tensors("random", train_x=x, train_y=y, test_x=x, test_y=y, classes=classes)
    short = replace(settings, length="2it", batch=4, score_examples=8)
    assert short.augment and 0 <= run(short, made, "snip-supervised", 0.1, 0) <= 1
