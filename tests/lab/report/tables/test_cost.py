"""What a run costs, with the runs that it needs."""

from dataclasses import replace

import pytest

from lab.study.example import example_store
from secateurs_lab.report.tables import cost, whole_cost


@pytest.fixture
def rows(tmp_path):
    with example_store(tmp_path / "a.study") as store:
        base, *others = [row for row in store.rows() if row.state == "done"][:4]
    plain = [replace(row, hidden=False, timings={}) for row in (base, *others)]
    keys = [row.key for row in plain]
    needs = [
        {"parent": None, "rewind": None},
        {"parent": keys[0], "rewind": keys[0]},  # the same run twice
        {"parent": keys[1], "rewind": keys[0]},
        {"parent": "not in this store", "rewind": None},
    ]
    return [
        replace(
            row,
            label=f"method {n}",
            seconds=10.0 * 2**n,
            settings={**row.settings, **needs[n]},
        )
        for n, row in enumerate(plain)
    ]


def test_a_run_and_all_that_it_needs_count_once(rows):
    known = {row.key: row for row in rows}
    assert [whole_cost(row, known) for row in rows] == [10, 10 + 20, 10 + 20 + 40, 80]


def test_the_table_names_one_run_with_and_without_the_runs_it_needs(rows):
    first = replace(rows[2], timings={"cut": 0.5, "train": 3.25, "measure": 1.0, "measured": 2.0})
    table = cost([*rows[:2], first])
    assert table.columns[:2] == ("method", "runs")
    assert table.columns[-3:-1] == ("one run, s", "with the runs it needs, s")
    named = [dict(zip(table.columns, cells, strict=True)) for cells in table.cells]
    assert [line["one run, s"] for line in named] == ["10", "20", "40"]
    assert [line["with the runs it needs, s"] for line in named] == ["10", "30", "70"]
    assert [named[2][k] for k in ("score and cut", "train", "measure")] == [
        "0.50",
        "3.25",
        "3.00",
    ]
    assert "begin" not in table.columns


def test_runs_that_are_hidden_or_never_ended_have_no_line(rows):
    hidden = replace(rows[0], hidden=True)
    waiting = replace(rows[1], state="waiting")
    assert [cells[0] for cells in cost([hidden, waiting, rows[2]]).cells] == ["method 2"]
