"""What can happen to a study: kills, signals, full disks. Nothing that was
finished is lost.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.study import chaos
from secateurs.errors import StoreError
from secateurs_lab.study import Data, Dwf, Prune, Stopped, Store, Study, Training, run

LENET = {"model": "lenet-300-100", "data": Data(name="digits", train=256, test=50)}
TRAIN = Training(length="2ep", batch=64)
ENV = {**os.environ, "PYTHONPATH": chaos.SOURCE, "OMP_NUM_THREADS": "1"}


def small(**changes):
    return Study(
        **{
            **LENET,
            "methods": [Prune()],
            "compressions": [4],
            "train": TRAIN,
            **changes,
        }
    )


@pytest.mark.slow
def test_kill_at_random_moments(capsys):
    found = chaos.main(30, minutes=5)
    assert found["equal tables"] == found["studies"] >= 1
    assert found["finished runs lost"] == 0
    assert found["runs"] >= 60 and found["done"] > 50
    with capsys.disabled():
        print(f"\n{found}")


FILE = """
name = "long"
model = "lenet-300-100"
data = { name = "digits", train = 512, test = 50 }
compressions = [4]
train = { length = "4000ep", batch = 16, evaluate_every = 0 }
[[methods]]
score = "magnitude"
after = "init"
"""


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_a_study_with_everything_saved(tmp_path, asked, code, capsys):
    file = tmp_path / "long.toml"
    file.write_text(FILE)
    command = [
        sys.executable,
        "-m",
        "secateurs",
        "study",
        "run",
        str(file),
        "--workers",
        "2",
    ]
    process = subprocess.Popen(
        command, env=ENV, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    store = tmp_path / "long.study"
    chaos.wait_for(lambda: under_way(store) or process.poll() is not None, seconds=300)
    assert process.poll() is None, process.communicate()[1]
    workers = chaos.children(process.pid)
    assert len(workers) == 2
    begun = time.monotonic()
    os.killpg(process.pid, asked) if asked == signal.SIGINT else process.send_signal(asked)
    _, errors = process.communicate(timeout=120)
    took = time.monotonic() - begun
    assert process.returncode == code, errors
    assert "everything is saved" in errors and "Traceback" not in errors
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    with Store.open(store) as held:
        assert held.counts() == {"waiting": 2}
        assert all("checkpoint" in held.held(row.key) for row in held.rows())
    with capsys.disabled():
        print(f"\n{asked.name}: ended after {took:.1f} s with code {code}")


def under_way(store):
    """Whether both runs have taken steps: their progress is in the store."""
    try:
        with Store.open(store) as held:
            return sum(row.progress > 0 for row in held.rows(details=False)) == 2
    except StoreError:
        return False


@pytest.fixture
def disk(tmp_path):
    """A disk of 3 MB of our own, and what changes its options; needs the right to mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a disk cannot be mounted here: that needs root")

    def remount(options):
        command = ["mount", "-o", f"remount,{options}", str(folder)]
        subprocess.run(command, check=True)

    try:
        yield folder, remount
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)  # even if in use


def results(store):
    return {row.key: row.result() for row in store.rows(hidden=True) if row.ended}


@pytest.mark.slow
def test_a_full_disk_is_told_and_the_study_goes_on_after(disk, capsys):
    folder, remount = disk
    study = small(methods=[Prune(), Dwf()], seeds=list(range(8)))
    with pytest.raises(StoreError, match=r"(?s)[Ff]ree some space.*resume") as told:
        run(study, folder / "s")
    with Store.open(folder / "s") as held:
        before = results(held)
    remount("size=60m")
    with run(study, folder / "s") as held:
        after = results(held)
        assert set(held.counts()) == {"done"}
    assert before and before.items() <= after.items()
    with capsys.disabled():
        print(f"\ndisk full after {len(before)} of {len(after)} runs: {told.value}")


@pytest.mark.slow
def test_a_disk_that_becomes_read_only_is_told_and_the_study_goes_on_after(disk):
    folder, remount = disk
    remount("size=60m")
    with run(small(), folder / "s") as held:
        before = results(held)
    remount("ro")
    with pytest.raises(StoreError, match="cannot be written"):
        run(small(seeds=[0, 1]), folder / "s")
    with Store.open(folder / "s") as held:  # reading goes on
        assert results(held) == before
    remount("rw")
    with run(small(seeds=[0, 1]), folder / "s") as held:
        assert held.counts() == {"done": 4}
        assert before.items() <= results(held).items()


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(StoreError, match="--store"):
        run(small(), blocked / "s")


def test_a_second_driver_is_refused(tmp_path):
    from secateurs_lab.study.store import only_writer

    with Store.create(tmp_path / "s") as held, only_writer(held.folder):
        code = (
            "from pathlib import Path; from secateurs_lab.study.store import only_writer\n"
            f"with only_writer(Path({str(held.folder)!r})): pass"
        )
        told = subprocess.run([sys.executable, "-c", code], env=ENV, capture_output=True, text=True)
    assert told.returncode == 1
    assert f"being written by another process ({os.getpid()})" in told.stderr


def test_a_clock_set_back_changes_nothing(tmp_path, monkeypatch):
    """Nothing is decided by the time of day."""
    with run(small(), tmp_path / "s") as held:
        expected = sorted(row.result() for row in held.rows())
    times = iter(range(10**9, 0, -1000))
    monkeypatch.setattr(time, "time", lambda: float(next(times)))
    with run(small(), tmp_path / "t") as held:
        assert sorted(row.result() for row in held.rows()) == expected


def test_a_signal_leaves_a_checkpoint_and_the_next_call_goes_on(tmp_path):
    study, sent = small(train=Training(length="30ep", batch=64)), []

    class Watch:
        def begin(self, rows):
            pass

        def news(self, key, what):
            if what["event"] == "epoch" and what["epoch"] == 7 and not sent:
                sent.append(key)
                os.kill(os.getpid(), signal.SIGTERM)

        def ended(self, row):
            pass

    with pytest.raises(Stopped, match="everything is saved") as stopped:
        run(study, tmp_path / "s", watchers=(Watch(),))
    assert stopped.value.signum == signal.SIGTERM
    with Store.open(tmp_path / "s") as held:
        assert held.held(sent[0]).keys() == {"checkpoint"}
        assert held.counts() == {"waiting": 2}
    with run(study, tmp_path / "s") as held, run(study, tmp_path / "t") as other:
        assert [row.result() for row in held.rows()] == [row.result() for row in other.rows()]
        assert held.held(sent[0]) == {}


def test_the_rooms_that_users_need_open_from_the_package():
    import secateurs_lab as lab

    assert lab.report.write_page and lab.study.run
