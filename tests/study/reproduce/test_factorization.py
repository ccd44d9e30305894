"""The Fashion-MNIST study: grids without repeats, one small run whole on the digits' size of
problem, its table.
"""

import math
from dataclasses import replace

import pytest
import torch

from secateurs.errors import ArgumentError
from secateurs.study.reproduce.factorization import beyond as factorization_beyond
from secateurs.study.reproduce.factorization import experiment as factorization
from secateurs.study.reproduce.factorization import paper as factorization_paper
from secateurs.study.reproduce.factorization.beyond import Beyond
from secateurs.study.reproduce.factorization.experiment import OURS, FactorizationSettings
from secateurs.study.reproduce.factorization.narrow import Narrow
from secateurs.study.reproduce.factorization.paper import Reached
from secateurs.study.reproduce.factorization.table import markdown

SPARSE = {"strength": 1.5e-2, "epochs": 60, "batch": 50, "rate": 0.3, "ramp": 0.5, "relax": 0.3}
"""Enough for exact zeros on the problem below."""


@pytest.fixture
def images(monkeypatch):
    """784 noisy pixels of ten classes, 500 images: what `data.load` would return, flat."""
    draw = torch.Generator().manual_seed(0)
    centres = (torch.rand(10, 784, generator=draw) < 0.2).float()
    y = torch.arange(500) % 10
    x = (centres[y] + 0.3 * torch.rand(500, 784, generator=draw)).clamp(0, 1)
    made = factorization._Images(x=x, y=y, test_x=x[:200], test_y=y[:200])
    monkeypatch.setattr(factorization, "_images", lambda settings: made)
    return made


@pytest.mark.parametrize("study", [factorization, factorization_beyond])
def test_the_grid_has_no_row_twice(study):
    keys = [tuple(study.key(settings).items()) for settings in study.grid()]
    assert len(set(keys)) == len(keys) > 5


@pytest.mark.parametrize("method", factorization.METHODS)
def test_every_method_runs_and_reaches_its_compression(images, method):
    wanted = 1.0 if method in ("dense", "dwf") else 20.0
    row = factorization.run(
        FactorizationSettings(method=method, epochs=2, batch=50, prune_to=wanted, tune=1, rate=0.1)
    )
    assert set(row.flat()) == set(factorization.key(row.settings)) | {
        "compression",
        "accuracy",
        "gap_compression",
        "gap_accuracy",
        "tuned_accuracy",
        "seconds",
    }
    if method != "dwf":
        assert row.compression == pytest.approx(wanted, rel=0.02)
    assert row.accuracy > (85 if method == "dense" else 5) and math.isfinite(row.tuned_accuracy)


def test_factorized_training_is_the_same_with_and_without_cutting_dead_units(images, monkeypatch):
    """The narrow net is only faster: never cutting gives the same weights."""
    settings = FactorizationSettings(**SPARSE)
    cut, _ = factorization.survivors(settings)
    monkeypatch.setattr(Narrow, "worth_cutting", lambda self, units: False)
    whole, _ = factorization.survivors(settings)
    kept = sum(int((w != 0).sum()) for w in cut)
    assert 0 < kept < 5_000
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(cut, whole, strict=True))


def test_beyond_starts_from_factorized_training_and_keeps_what_was_asked(images, monkeypatch):
    short = {name: value for name, value in {**OURS, **SPARSE}.items() if name != "strength"}
    monkeypatch.setattr(factorization_beyond, "OURS", short)
    row = factorization_beyond.run(
        Beyond(compression_asked=15_000.0, strength=SPARSE["strength"], rounds=2)
    )
    assert row.start_compression < row.compression
    assert row.compression == pytest.approx(266_610 / 17)
    assert row.accuracy > 30 and row.units.endswith("-10")
    dense = replace(factorization.run(FactorizationSettings(method="dense", epochs=1, batch=50)))
    table = markdown([dense.flat()], beyond=[row.flat()])
    assert "## Beyond: the weights exchanged" in table
    assert f"| {row.accuracy:.2f} | {dense.accuracy - row.accuracy:.2f} |" in table
    assert len(table.splitlines()[-1].split("|")) == len(table.splitlines()[-2].split("|"))


def test_the_table_averages_over_seeds():
    row = {
        "tuned_accuracy": "nan",
        "gap_compression": "nan",
        "gap_accuracy": "nan",
        "compression": "100.0",
    }
    rows = [
        {
            **factorization.key(FactorizationSettings(method="gmp", seed=s, prune_to=100.0)),
            **row,
            "accuracy": a,
        }
        for s, a in enumerate(("80", "82"))
    ]
    assert (
        "| lenet-300-100: gmp | 100× | 0.15 | 2 | 100.00 (100.0 to 100.0) | 81.00 (80.0 to 82.0) |"
        in markdown(rows)
    )
    assert "Beyond" not in markdown(rows)


def test_an_unknown_method_is_refused():
    with pytest.raises(ArgumentError, match="method='obs' is none of dense, dwf"):
        FactorizationSettings(method="obs")


def _study(*runs):
    """Rows of a table: (method, seed, ramp, compression, accuracy, gap compression, tuned
    accuracy).
    """
    names = (
        "method",
        "seed",
        "ramp",
        "compression",
        "accuracy",
        "gap_compression",
        "tuned_accuracy",
    )
    return [
        {"model": "lenet-300-100", "depth": "3", **dict(zip(names, map(str, run), strict=True))}
        for run in runs
    ]


def test_beside_the_paper_curves_are_read_per_seed_and_setting():
    nan = math.nan
    rows = _study(
        ("dense", 0, 0, 1, 89, nan, nan),
        ("dense", 1, 0, 1, 90, nan, nan),
        ("dwf", 0, 0.7, 100, 88, 120, 88.5),
        ("dwf", 0, 0.7, 10000, 80, 12000, 80.5),
        ("dwf", 1, 0.7, 100, 87, 100, 87),
        ("dwf", 1, 0.7, 1000, 86, 1000, 86),
        ("dwf", 0, 0, 100, 50, 100, nan),  # constant λ: not of our curve
        ("gmp", 0, 0, 100, 20, nan, 85),
        ("gmp", 0, 0, 400, 10, nan, 83),
    )
    text = factorization_paper.markdown(rows)
    assert (
        "| dwf-depth-3 | 2 | 506× | ≥ 1000× (1000 to 1000) | ≥ 1300× (1000 to 1600) | 1422×" in text
    )
    assert (
        "| lenet-300-100, dwf-depth-3 | 99.5 % | 86.02 ± 0.20 | 2 | 86.75 (86.7 to 86.8) |" in text
    )
    assert (
        "| lenet-300-100, gmp | 99.5 % | 79.77 ± 5.47 | 1 | 15.00 (15.0 to 15.0) | 84.00 (84.0 to"
        " 84.0) |" in text
    )


@pytest.mark.parametrize(
    ("curve", "wanted", "found"),
    [
        ([], 50.0, None),
        ([(10.0, 40.0), (100.0, 30.0)], 50.0, None),
        ([(10.0, 60.0), (100.0, 55.0)], 50.0, Reached(compression=100.0, open=True)),
        (
            [(10.0, 60.0), (100.0, 40.0), (1e3, 60.0), (1e4, 40.0)],
            50.0,
            Reached(compression=3162.27766),
        ),
    ],
)
def test_the_last_crossing_counts(curve, wanted, found):
    assert factorization_paper.largest(curve, wanted) == found
