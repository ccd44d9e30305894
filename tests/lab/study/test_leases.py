"""A run belongs to one worker; who comes late is refused; many may ask at once."""

import multiprocessing
from dataclasses import replace

import pytest

from secateurs.errors import StaleLease
from secateurs_lab.study import Row, Store, leases


def row(key, **changes):
    parts = {
        "label": "dense",
        "kind": "dense",
        "data": "digits",
        "model": "lenet-5",
        "seed": 0,
    }
    return Row(key=key, **parts, **changes)


@pytest.fixture
def store(tmp_path):
    with Store.create(tmp_path / "s") as made:
        made.add([row("a"), row("b")])
        yield made


def test_a_late_result_is_refused(store):
    first = leases.lease(store, "a", "worker 1")
    second = leases.lease(store, "a", "worker 2")
    late = replace(row("a"), state="done", accuracy=0.1)
    with pytest.raises(StaleLease, match=r"worker 1 comes too late with a: .* given to worker 2"):
        leases.finish(store, first, late)
    with pytest.raises(StaleLease):
        leases.hold(store, first, "checkpoint", "x")
    assert store.row("a").state == "running"
    leases.finish(store, second, replace(late, accuracy=0.9))
    assert store.row("a").accuracy == 0.9
    with pytest.raises(StaleLease, match="taken back"):
        leases.finish(store, second, late)


def test_tokens_grow_over_restarts_and_releases(store):
    tokens = []
    for _ in range(5):
        tokens.append(leases.lease(store, "a", "w").token)
        leases.release(store, "a")
        store.close()
        store = Store.open(store.folder)
    assert tokens == sorted(set(tokens))
    assert store.row("a").state == "waiting"


def test_a_dead_driver_leaves_nothing_running(store):
    leases.lease(store, "a", "w")
    assert leases.release_all(store) == 1
    assert store.counts() == {"waiting": 2}


def test_checkpoints_go_with_the_result(store):
    held = leases.lease(store, "a", "w")
    leases.hold(store, held, "checkpoint", "x")
    leases.hold(store, held, "checkpoint", "y")
    assert store.held("a") == {"checkpoint": "y"}
    leases.finish(store, held, replace(row("a"), state="done"))
    assert store.held("a") == {}


def lease_any(store, owner):
    """Lease the first waiting run in one transaction; None if none is waiting."""
    with store.writing() as db:
        line = db.execute(
            "SELECT key FROM runs WHERE state = 'waiting' ORDER BY position LIMIT 1"
        ).fetchone()
        if line is None:
            return None
        cursor = db.execute(
            "INSERT OR REPLACE INTO leases (key, owner) VALUES (?, ?)", (line["key"], owner)
        )
        db.execute("UPDATE runs SET state = 'running' WHERE key = ?", (line["key"],))
        return leases.Lease(line["key"], int(cursor.lastrowid or 0), owner)


def take_all(folder, number, out):
    """One of several processes that lease and finish runs of one store, as quickly as they can."""
    done = []
    with Store.open(folder) as store:
        while (held := lease_any(store, f"worker {number}")) is not None:
            leases.finish(
                store,
                held,
                replace(row(held.key), state="done", accuracy=number / 10),
            )
            done.append(held.key)
    out.put(done)


def contend(folder, *, workers, runs):
    with Store.create(folder) as store:
        store.add([row(f"{number:05d}") for number in range(runs)])
    context, out = multiprocessing.get_context("spawn"), None
    out = context.Queue()
    team = [context.Process(target=take_all, args=(folder, n, out)) for n in range(workers)]
    for process in team:
        process.start()
    taken = [out.get(timeout=500) for _ in team]
    for process in team:
        process.join()
    with Store.open(folder) as store:
        counts = store.counts()
    return taken, counts


def test_processes_that_lease_at_once_share_the_runs(tmp_path):
    taken, counts = contend(tmp_path / "s", workers=2, runs=40)
    assert sorted(key for keys in taken for key in keys) == [f"{n:05d}" for n in range(40)]
    assert counts == {"done": 40}


@pytest.mark.slow
def test_eight_workers_lease_a_thousand_runs_each(tmp_path, capsys):
    taken, counts = contend(tmp_path / "s", workers=8, runs=8000)
    keys = [key for keys in taken for key in keys]
    assert len(keys) == len(set(keys)) == 8000
    assert counts == {"done": 8000}
    with capsys.disabled():
        print(f"\n8 workers, 8,000 leases, no lock error; per worker: {sorted(map(len, taken))}")
