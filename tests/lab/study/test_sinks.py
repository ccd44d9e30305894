"""Sinks hold every run that has ended, whenever they were asked for."""

import sys

import pytest

from lab.study.example import example_store
from secateurs_lab.study import Data, Prune, Study, Training, run
from secateurs_lab.study.sinks import SINKS, _Sink, sink_of


class Listed(_Sink):
    """Writes keys into a list."""

    def __init__(self, folder, out):
        super().__init__(folder, "listed")
        self.out = out

    def write(self, row):
        self.out.append((row.key, len(row.history)))


def study(*compressions):
    return Study(
        data=Data(name="digits", train=128, test=50), methods=[Prune(after="init")],
        compressions=compressions, train=Training(length="2ep", batch=64),
    )  # fmt: skip


def test_a_sink_that_joins_later_has_the_runs_of_before_and_none_twice(tmp_path):
    out = []
    run(study(4), tmp_path / "s").close()
    for _ in range(2):
        sink = Listed(tmp_path / "s", out)
        run(study(4, 8), tmp_path / "s", watchers=(sink,)).close()
    assert len(out) == len(set(out)) == 3
    assert all(points == 2 for _, points in out)


def test_a_run_written_in_part_is_written_again(tmp_path):
    class Broken(Listed):
        def write(self, row):
            super().write(row)
            raise OSError("no space left")

    run(study(4), tmp_path / "s").close()
    out = []
    with pytest.raises(OSError):
        run(study(4), tmp_path / "s", watchers=(Broken(tmp_path / "s", out),))
    run(study(4), tmp_path / "s", watchers=(Listed(tmp_path / "s", out),)).close()
    assert [key for key, _ in out].count(out[0][0]) == 2
    assert len(set(out)) == 2


def test_a_run_that_ends_otherwise_later_is_written_once_more(tmp_path):
    out = []
    with example_store(tmp_path / "s", seeds=1) as held:
        rows = held.rows(details=False, hidden=True)
        Listed(tmp_path / "s", out).begin(rows)
        lost = next(row for row in rows if row.state == "failed")
        held.mark(lost.key, state="done")
        Listed(tmp_path / "s", out).begin(held.rows(details=False, hidden=True))
    assert [key for key, _ in out[len(rows) :]] == [lost.key]


@pytest.mark.parametrize("name", SINKS.names())
def test_the_tools_themselves_take_what_was_there(tmp_path, name, monkeypatch):
    pytest.importorskip(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    run(study(4), tmp_path / "s").close()
    run(study(4), tmp_path / "s", watchers=(sink_of(name, tmp_path / "s"),)).close()
    found = list((tmp_path / "s" / name).iterdir())
    runs = [each for each in found if each.is_dir() and not each.is_symlink()]
    assert len(runs) == 2
    assert len((tmp_path / "s" / name / "written.txt").read_text().splitlines()) == 2


class Offline:
    """What a tool of other people is told, without the tool."""

    def __init__(self):
        self.points, self.summary, self.closed = [], {}, False

    def init(self, **how):
        self.how = how
        return self

    def Settings(self, **how):
        return how

    def log(self, values, step):
        self.points.append((step, values))

    def finish(self):
        self.closed = True


def test_a_run_is_told_with_every_point_and_its_end(tmp_path, monkeypatch):
    tool = Offline()
    monkeypatch.setitem(sys.modules, "wandb", tool)
    with example_store(tmp_path / "s", seeds=1) as held:
        row = next(row for row in held.rows() if row.history and row.state == "done")
        sink_of("wandb", tmp_path / "s").write(row)
    assert tool.how["mode"] == "offline" and tool.how["id"] == row.key and tool.closed
    assert [step for step, _ in tool.points] == [p.iteration for p in row.history]
    for (_, values), point in zip(tool.points, row.history, strict=True):
        assert values["test_accuracy"] == point.test_accuracy
        assert all(value is not None for value in values.values())
    assert tool.summary == {"state": "done", **row.metrics}
