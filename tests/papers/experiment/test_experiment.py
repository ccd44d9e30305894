"""Experiments as values: jobs by name, rows that come back, figures beside print."""

import csv
import os
from functools import partial
from threading import Thread

import pytest

from experiments.__main__ import main
from experiments.catalogue import EXPERIMENTS
from experiments.experiment import (
    SCALES,
    Comparison,
    Experiment,
    Measurement,
    append_rows,
    cells,
    markdown,
    part_of,
    read_rows,
    run,
)
from secateurs.errors import ArgumentError, DataError, TrainingError
from secateurs_lab.study import How, Store
from secateurs_lab.study.export import job_lines


def counted(names, done):
    """Jobs that note when they work."""

    def work(name):
        done.append(name)
        return [{"value": 1 / 3, "flag": True}, {"value": 2.0, "flag": False}]

    return [Measurement(name=name, work=lambda name=name: work(name)) for name in names]


def test_what_is_in_the_file_is_not_done_again(tmp_path):
    out, done = tmp_path / "rows.csv", []
    run(counted("ab", done), out)
    rows = run(counted("abc", done), out)
    assert done == ["a", "b", "c"]
    assert [row["job"] for row in rows] == ["a", "a", "b", "b", "c", "c"]
    assert rows[0] == {"job": "a", "value": "0.333333", "flag": "True"}
    assert rows == read_rows(out)


def test_without_a_file_rows_come_back_too():
    done = []
    assert len(run(counted("aab", done))) == 4 and done == ["a", "b"]


def listed(*names):
    """Measurements that another process can be sent."""
    return [
        Measurement(name=name, work=partial(list, [{"value": 1.0, "a": name}])) for name in names
    ]


def test_workers_bring_the_rows_of_one_process(tmp_path):
    alone = run(listed(*"abc"), tmp_path / "alone.csv")
    how = How(engine="local", workers=2)
    run(listed(*"abc"), tmp_path / "two.csv", how=how, store=tmp_path / "two.study")
    assert sorted(read_rows(tmp_path / "two.csv"), key=lambda row: row["job"]) == alone
    with Store.open(tmp_path / "two.study") as store:
        assert store.counts() == {"done": 3}
        assert [list(line) for line in job_lines(store.rows())] == [["job", "value", "a"]] * 3


def test_a_failure_leaves_the_others_and_is_tried_again(tmp_path):
    out, done = tmp_path / "rows.csv", []
    wrong = Measurement(name="b", work=lambda: 1 // 0)
    first, last = counted("ac", done)
    with pytest.raises(TrainingError, match="1 of 3 jobs failed; the first was 'b': ZeroDivision"):
        run([first, wrong, last], out, store=tmp_path / "rows.study")
    assert done == ["a", "c"] and {row["job"] for row in read_rows(out)} == {"a", "c"}
    run(counted("abc", done), out, store=tmp_path / "rows.study")
    assert done == ["a", "c", "b"]


def test_what_the_store_has_is_written_into_a_file_that_lacks_it(tmp_path):
    """A driver may be killed after a result is in the store, and before it is in the file."""
    out, done = tmp_path / "rows.csv", []
    rows = run(counted("ab", done), out, store=tmp_path / "rows.study")
    out.unlink()
    assert run(counted("ab", done), out, store=tmp_path / "rows.study") == rows
    assert done == ["a", "b"]


def test_another_process_may_have_done_it_meanwhile(tmp_path):
    out, done = tmp_path / "rows.csv", []

    def first():
        append_rows(out, [{"job": "b", "value": "2", "flag": "True"}])
        return [{"value": 1, "flag": True}]

    run([Measurement(name="a", work=first), *counted("b", done)], out)
    assert done == [] and [row["job"] for row in read_rows(out)] == ["b", "a"]


def test_parts_cover_every_job_once():
    jobs = counted("abcdefg", [])
    parts = [job.name for k in (1, 2, 3) for job in part_of(jobs, f"{k}/3")]
    assert sorted(parts) == list("abcdefg")


@pytest.mark.parametrize("part", ["0/2", "3/2", "1", "a/b", "1/", "-1/2"])
def test_a_part_that_is_none_is_refused(part):
    with pytest.raises(ArgumentError, match="K/N"):
        part_of([], part)


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "job,value\na,1,2\n"])
def test_a_foreign_or_damaged_file_is_refused(tmp_path, text):
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(DataError, match="is not a table of experiments"):
        read_rows(tmp_path / "rows.csv")


def test_a_kill_at_any_byte_leaves_all_rows_of_a_job_or_none(tmp_path, monkeypatch):
    out = tmp_path / "rows.csv"
    append_rows(out, [{"job": "a", "value": "1"}])
    before, rows = out.read_bytes(), [{"job": "b", "value": "70.623"}] * 200

    def killed(file, lines, **_):
        file.write("b,70.\n")
        file.flush()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("experiments.experiment.write_csv", killed)
    with pytest.raises(DataError, match="free some space"):
        append_rows(out, rows)
    assert out.read_bytes() == before and os.listdir(tmp_path) == ["rows.csv"]
    monkeypatch.undo()
    append_rows(out, rows)
    assert len(read_rows(out)) == 201


def test_a_file_that_was_cut_in_its_last_figure_is_refused(tmp_path):
    append_rows(tmp_path / "rows.csv", [{"job": "a", "value": "70.623"}])
    whole = (tmp_path / "rows.csv").read_bytes()
    for cut in range(1, len(whole)):
        (tmp_path / "rows.csv").write_bytes(whole[:cut])
        if whole[:cut].endswith(b"\n"):
            continue
        with pytest.raises(DataError, match="cut short.*does this job again"):
            read_rows(tmp_path / "rows.csv")


def test_two_processes_add_to_one_file(tmp_path):
    """Each takes the lock of a file that the other may replace meanwhile."""
    out = tmp_path / "rows.csv"

    def add(name):
        for number in range(20):
            append_rows(out, [{"job": f"{name}{number}", "value": "1"}] * 3)

    threads = [Thread(target=add, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_rows(out)) == 180


def test_rows_are_readable_as_plain_csv(tmp_path):
    append_rows(tmp_path / "rows.csv", [{"job": "a, b", "value": "1"}])
    append_rows(tmp_path / "rows.csv", [{"job": "c", "value": "2"}])
    with (tmp_path / "rows.csv").open(newline="") as file:
        assert [row["job"] for row in csv.DictReader(file)] == ["a, b", "c"]


def test_deviation_is_ours_less_print():
    assert Comparison(what="x", ours=(84.0, 85.0), printed=86.0).deviation == -1.5
    assert Comparison(what="x", ours=(84.0,)).deviation is None
    assert cells(Comparison(what="x", ours=(1.0,), note="n")) == (
        "x",
        "1",
        "1",
        "",
        "",
        "n",
    )


def test_a_page_says_how_it_was_made():
    jobs = lambda scale: []  # noqa: E731
    made = Experiment(
        name="n",
        paper="P",
        what="W",
        jobs=jobs,
        compare=lambda rows: [],
        settings={"cpu": "small"},
    )
    page = markdown(made, [Comparison(what="x", ours=(1.0, 3.0), printed=1.0)], scale="cpu")
    assert "python -m experiments n --scale cpu" in page and "Here: small." in page
    assert "| x | 2 (1 to 3) | 2 | 1 | +1 |  |" in page


@pytest.mark.parametrize("name", EXPERIMENTS.names())
def test_every_experiment_has_jobs_of_different_names_at_every_scale(name):
    experiment = EXPERIMENTS[name]
    assert experiment.name == name
    missing = set(SCALES) - {"short"} - set(experiment.settings)
    assert not missing, f"say in settings= what {name} is at these scales: {sorted(missing)}"
    assert set(experiment.settings) <= set(SCALES)
    for scale in experiment.settings:
        names = [job.name for job in experiment.jobs(scale)]
        assert names and len(set(names)) == len(names)
    assert experiment.compare([]) == []


def told(capsys, *arguments):
    """Exit code and output of one call of the command line in this process."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    shown = capsys.readouterr()
    return stop.value.code or 0, shown.out, shown.err


def test_the_command_lists_them_and_refuses_what_is_none(capsys):
    code, out, _ = told(capsys)
    assert code == 0 and all(name in out for name in EXPERIMENTS.names())
    assert told(capsys, "sketching-tables", "--scale", "huge")[0] == 2
    code, _, said = told(capsys, "sketching-tables", "--scale", "short")
    assert code == 2 and "smoke, cpu, full" in said
    code, _, err = told(capsys, "sketching-table")
    assert code == 2 and "Did you mean" in err


def test_the_command_runs_one_and_writes_rows_and_page(tmp_path, capsys):
    out, page = tmp_path / "rows.csv", tmp_path / "page.md"
    command = [
        "probabilistic-moments",
        "--out",
        str(out),
        "--page",
        str(page),
    ]
    code, shown, _ = told(capsys, *command)
    assert code == 0 and "layer 2: variance" in shown
    assert len(read_rows(out)) == 6 and "0.0155" in page.read_text()
    before = page.read_text()
    assert told(capsys, *command)[0] == 0 and page.read_text() == before


def test_rows_with_other_columns_are_not_added(tmp_path):
    out = tmp_path / "rows.csv"
    append_rows(out, [{"job": "a", "x": "1"}])
    before = out.read_bytes()
    with pytest.raises(DataError, match="other columns"):
        append_rows(out, [{"job": "b", "y": "2"}])
    assert out.read_bytes() == before
    append_rows(out, [{"job": "b", "x": "2"}])
    assert [row["x"] for row in read_rows(out)] == ["1", "2"]
