"""How a study is seen, from its driver and from outside."""

from io import StringIO

from rich.console import Console

from lab.study.example import example_store
from secateurs_lab.study import Data, How, Prune, Study, Training, run
from secateurs_lab.study.watching import Score, run_line, table


def shown(rows):
    console = Console(file=StringIO(), width=200)
    console.print(table(rows, title="t"))
    return console.file.getvalue()


def test_progress_is_in_the_store_while_a_run_goes(tmp_path):
    seen = []

    class Look:
        def begin(self, rows):
            pass

        def news(self, key, what):
            if what["event"] == "epoch" and what["epoch"] > 1:
                with Store.open(tmp_path / "s") as held:
                    seen.append(held.row(key).progress)

        def ended(self, row):
            pass

    from secateurs_lab.study import Store, fitting

    study = Study(
        data=Data(name="digits", train=256, test=50), methods=[Prune(after="init")],
        compressions=[4], train=Training(length="4ep", batch=64),
    )  # fmt: skip
    before, fitting.NEWS_EVERY = fitting.NEWS_EVERY, 0.0
    try:
        run(study, tmp_path / "s", how=How(engine="in-process"), watchers=(Look(),)).close()
    finally:
        fitting.NEWS_EVERY = before
    assert 0 < max(seen) < 1


def test_shares_of_running_runs_are_shown(tmp_path):
    with example_store(tmp_path / "s") as held:
        keys = [row.key for row in held.rows(details=False)][:3]
        for key, share in zip(keys, (0.2, 0.5, 0.8), strict=True):
            held.mark(key, state="running", progress=share, label="dense")
        held.note_progress({keys[0]: 0.8, "none": 0.1})
        rows = held.rows(details=False)
    assert "3 (70 %)" in shown(rows)
    assert run_line(rows[0]).endswith("running, 80 %")


def test_the_time_left_is_that_of_the_mean_run(tmp_path):
    with example_store(tmp_path / "s") as held:
        first, second = (row.key for row in held.rows(details=False)[:2])
        held.mark(first, state="running", progress=0.25)
        held.mark(second, state="waiting")
        rows = held.rows(details=False)
    score = Score()
    score.read(rows)
    took = [row.seconds for row in rows if row.state == "done"]
    assert score.left == sum(took) / len(took) * 1.75
    score.read([row for row in rows if row.state == "running"])
    assert score.left is None and "left" not in score.summary()


def test_runs_without_a_result_are_counted_by_how_they_ended(tmp_path):
    with example_store(tmp_path / "s") as held:
        rows = held.rows()
        states = [row.state for row in rows]
        lines = shown(rows)
    for state in ("diverged", "collapsed", "failed"):
        told = sum(
            int(line.split(f" {state}")[0].split()[-1])
            for line in lines.splitlines()
            if f" {state}" in line
        )
        assert told == states.count(state)
    assert "diverged" in states
