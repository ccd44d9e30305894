"""One training of the weight-factorization paper: a rate that is too large is a result, too."""

import math

from experiments.experiment import Measurement, run
from experiments.factorization.plans import compare_frontiers, compare_runs
from experiments.factorization.plans import run as trained
from experiments.factorization.training import FactorizationSettings, name_of


def job(rate):
    settings = FactorizationSettings(data="digits", rate=rate, epochs=2, batch=64)
    return Measurement(name=name_of(settings), work=lambda: [trained(settings).flat()])


def test_a_training_that_diverges_is_a_row_and_the_next_one_follows(tmp_path):
    rows = run([job(300.0), job(0.15)], tmp_path / "rows.csv")
    assert [row["accuracy"] == "nan" for row in rows] == [True, False]
    figures = {figure.what: figure for figure in compare_runs(rows)}
    lost = figures[
        "lenet-300-100, digits, dwf-depth-3 (two deviations, rate 300), λ 0.001: accuracy"
    ]
    assert math.isnan(lost.mean) and lost.note == "diverged: 1 of 1"
    assert not any(math.isnan(figure.mean) for figure in compare_frontiers(rows))
