"""Jobs and their rows as the driver sees them, with an executor that does what a test says."""

import os
import signal
import tempfile
from concurrent.futures import BrokenExecutor, Future
from dataclasses import replace

import pytest

from lab.study import chaos
from secateurs.errors import StoreError
from secateurs_lab.study import Data, Dense, How, Prune, Row, Store, Study, Training, run
from secateurs_lab.study.artefacts import DamagedFile
from secateurs_lab.study.driver import Sweep, work_through
from secateurs_lab.study.jobs import Interrupted, Job
from secateurs_lab.study.sweep import sweep_of


@pytest.fixture
def sweep(tmp_path):
    study = Study(
        model="lenet-300-100",
        data=Data(name="digits", train=64, test=50),
        methods=[Dense(), Prune()],
        compressions=[4],
        train=Training(length="1ep", batch=64),
    )
    with Store.create(tmp_path / "s") as store:
        yield sweep_of(study, store)


def test_a_checkpoint_replaces_the_one_before(sweep):
    key = sweep.next().key
    files = sweep.store.artefacts
    first, second = files.put(b"first"), files.put(b"second")
    sweep.hold(key, "checkpoint", first)
    sweep.hold(key, "checkpoint", second)
    assert not files.path(first).exists() and files.path(second).exists()
    # The same bytes once more: the file must stay.
    sweep.hold(key, "checkpoint", second)
    assert files.path(second).exists()
    assert sweep.store.held(key) == {"checkpoint": second}


class Scripted:
    """An executor that ends each job as the next entry of its script says."""

    own_process = True

    def __init__(self, *script, room=2):
        self.script, self.room, self.submitted, self.stopped = list(script), room, [], 0

    def submit(self, job, names):
        future = Future()
        self.submitted.append((job.key, names))
        end = self.script.pop(0) if self.script else "done"
        if isinstance(end, Exception):
            future.set_exception(end)
        elif end is not None:
            future.set_result(replace(job.row, state=end))
        return future

    def pass_on(self):
        pass

    def stop(self):
        self.stopped += 1

    def close(self):
        pass


class Telling:
    def __init__(self):
        self.told, self.ends = [], []

    def begin(self, rows):
        pass

    def news(self, key, news):
        self.told.append((key, news["event"]))

    def ended(self, row):
        self.ends.append((row.key, row.state, row.reason))


def jobs(names, **needs):
    def row(key):
        return Row(key=key, label=key, kind="x", data="", model="", seed=0)

    return [Job(row=row(key), work=None, needs=needs.get(key, {})) for key in names]


def go(tmp_path, executor, names="ab", *, stop=0, deaths=3, **needs):
    """The states of the jobs, and what was told, after an executor has had them."""
    watcher = Telling()
    with Store.create(tmp_path / "s") as store:
        swept = Sweep(jobs(names, **needs), store, How(deaths=deaths), (watcher,))
        swept.stop = stop
        work_through(swept, executor)
        return {row.key: row.state for row in store.rows()}, watcher


def test_a_job_whose_process_dies_is_done_again_before_others(tmp_path):
    executor = Scripted(BrokenExecutor("{SIGKILL(-9)}"), room=1)
    states, watcher = go(tmp_path, executor)
    assert states == {"a": "done", "b": "done"}
    assert [key for key, _ in executor.submitted] == ["a", "a", "b"]
    assert ("a", "died") in watcher.told


def test_a_job_that_costs_process_after_process_fails_alone(tmp_path):
    executor = Scripted(*[BrokenExecutor("... codes {SIGKILL(-9)} ...")] * 2, room=1)
    states, watcher = go(tmp_path, executor, "abc", deaths=2, c={"parent": "a"})
    assert states == {"a": "failed", "b": "done", "c": "failed"}
    reasons = {key: reason for key, _, reason in watcher.ends}
    assert reasons["a"] == (
        "its worker ended with SIGKILL(-9), perhaps by lack of memory, 2 times without getting"
        " further"
    )
    assert reasons["c"] == "not begun: the run a it needs has failed"


def test_what_could_not_begin_gets_another_chance(tmp_path):
    again = {"b": {"parent": "a"}}
    assert go(tmp_path, Scripted(ValueError("no")), **again)[0] == {"a": "failed", "b": "failed"}
    with Store.create(tmp_path / "s") as store:
        assert store.row("a").reason == "ValueError: no"
        store.reset("a")
        Sweep(jobs("ab", **again), store, How())
        assert store.counts() == {"waiting": 2}


def test_a_full_disk_ends_the_study_and_a_damaged_file_does_not(tmp_path):
    states, watcher = go(tmp_path, Scripted(DamagedFile("gone"), room=1))
    assert set(states.values()) == {"done"} and ("a", "damaged") in watcher.told
    with pytest.raises(StoreError, match="disk is full"):
        go(tmp_path, Scripted(StoreError("the disk is full")), "cd")


def test_stopping_waits_for_jobs_and_not_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr("secateurs_lab.study.driver.PATIENCE", 0.3)
    executor = Scripted(Interrupted("saved"), None)
    submit = executor.submit

    def asked(job, names):
        executor.sweep_stop()
        return submit(job, names)

    with Store.create(tmp_path / "s") as store:
        swept = Sweep(jobs("abc"), store, How())
        # The signal comes when the second job has been handed out.
        executor.sweep_stop = lambda: setattr(swept, "stop", 2 * (len(executor.submitted) == 1))
        executor.submit = asked
        work_through(swept, executor)
        assert executor.stopped == 1 and len(executor.submitted) == 2
        assert store.counts() == {"waiting": 3}


def test_a_killed_worker_takes_nothing_with_it(tmp_path, monkeypatch):
    """The process with one run is killed; the other goes on, and the rows are those of one
    process.
    """
    study = Study(
        model="lenet-300-100", data=Data(name="digits", train=256, test=50), methods=[Dense()],
        seeds=[0, 1], train=Training(length="60ep", batch=16, evaluate_every=10),
    )  # fmt: skip
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed = []

    class Kill(Telling):
        def news(self, key, news):
            super().news(key, news)
            if news["event"] == "epoch" and not killed:
                killed.append(chaos.children(os.getpid())[0])
                os.kill(killed[0], signal.SIGKILL)

    watcher = Kill()
    how = How(engine="local", workers=2, save_every=0.2)
    with run(study, tmp_path / "s", how=how, watchers=(watcher,)) as held:
        found = [row.result() for row in held.rows()]
    assert [event for _, event in watcher.told].count("died") == 1
    assert not chaos.children(os.getpid())
    assert not list(tmp_path.glob("secateurs-*"))
    with run(study, tmp_path / "t") as held:
        assert [row.result() for row in held.rows()] == found
