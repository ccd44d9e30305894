"""The experiments of the sketching paper run at small scale and carry the published figures beside
them.
"""

from dataclasses import replace

import pytest

from secateurs.errors import ArgumentError
from secateurs.study.reproduce.sketching import pictures
from secateurs.study.reproduce.sketching.tables import (
    METHODS,
    PAPER,
    SMALL,
    Row,
    SketchingSettings,
    accuracy_table,
    as_table,
    published,
)

pytest.importorskip("sklearn")

TINY = replace(SMALL, seeds=(0,), densities=(0.05,), length="2ep", drops=("1ep",), rewind_to="2it")


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return accuracy_table(TINY)


def test_every_method_has_a_row_and_learns(rows):
    assert [row.method for row in rows] == list(METHODS)
    assert all(row.density == 0.05 and row.runs == 1 and 0 <= row.accuracy <= 100 for row in rows)
    assert max(row.accuracy for row in rows) > 50


def test_the_table_is_reproducible(rows):
    again = accuracy_table(
        replace(TINY, methods=("snip-unsupervised+sparse-data+random-mask", "synflow-chi"))
    )
    known = {row.method: row for row in rows}
    assert all(known[row.method] == row for row in again)


def test_the_published_figures_stand_beside():
    figures = published()
    assert len(figures) == 24 + 12
    assert figures["cifar-10", "vgg-19", 0.05, "snip-supervised"] == (91.66, 0.25)
    assert figures["tiny-imagenet", "resnet-18", 0.02, "synflow+random-mask"] == (55.56, None)
    assert {key[3] for key in figures} <= set(METHODS)
    row = Row(
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
    bins = pictures.magnitudes(TINY, bins=10)
    for name in ("all", "synflow", "imp", "uniform"):
        assert sum(bin.shares[name] for bin in bins) == pytest.approx(1, abs=1e-5)
    mean = {
        name: sum((bin.low + bin.high) / 2 * bin.shares[name] for bin in bins)
        for name in bins[0].shares
    }
    assert mean["synflow"] > mean["uniform"] and mean["imp"] > mean["uniform"]


def test_the_norm_under_imp_is_larger_than_under_random_masks():
    rows = pictures.norms(TINY, sparsity=0.6, draws=4)
    assert [round(row.sparsity, 2) for row in rows] == [0.2, 0.36, 0.49, 0.59, 0.6]
    assert all(row.random < row.imp <= row.whole for row in rows)
    assert rows[0].random == pytest.approx(rows[0].whole * 0.8**0.5, rel=0.02)


def test_the_threshold_keeps_no_small_score_and_the_random_mask_some():
    bins = pictures.kept_scores(TINY, bins=12)
    first = {
        name: next(i for i, bin in enumerate(bins) if bin.shares[name] > 0)
        for name in bins[0].shares
    }
    assert first["threshold"] >= first["random mask"] >= first["all"]
