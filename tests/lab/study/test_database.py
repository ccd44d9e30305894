"""The file of a study: what is not one is refused before a byte of it changes."""

import os
import sqlite3
from contextlib import closing

import pytest

from secateurs.errors import StoreError
from secateurs_lab.study import Row, Store, database
from secateurs_lab.study.artefacts import Artefacts
from secateurs_lab.study.database import FILES, connect, prepare, tables_in
from secateurs_lab.study.store import being_written, only_writer

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"


def row(**changes):
    return Row(key="a", label="x", kind="dense", data="d", model="m", seed=0, **changes)


@pytest.mark.parametrize("wal", [False, True])
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE mine (x)",
        f"CREATE VIEW runs AS {ENDLESS}",
        f"CREATE VIEW notes AS {ENDLESS}",
        "CREATE TABLE runs (key TEXT)",
    ],
)
def test_the_file_of_another_program_stays_as_it_is(statement, wal, tmp_path):
    path = tmp_path / "study.db"
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA journal_mode = {'WAL' if wal else 'DELETE'}")
    db.execute(statement)
    db.commit()
    db.close()
    before = path.read_bytes()
    for use in (Store.create, Store.open):
        with pytest.raises(StoreError, match="'(mine|runs|notes)' in it is not one of ours"):
            use(tmp_path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["study.db"]


@pytest.mark.parametrize(
    "statement",
    [
        f"CREATE TRIGGER more BEFORE UPDATE ON runs BEGIN {ENDLESS}; END",
        "CREATE INDEX more ON runs (abs(seed))",
        "CREATE VIEW more AS SELECT * FROM runs",
    ],
)
def test_what_runs_beside_our_tables_is_refused(statement, tmp_path):
    Store.create(tmp_path).close()
    with sqlite3.connect(tmp_path / "study.db") as db:
        db.execute(statement)
    db.close()
    with pytest.raises(StoreError, match="'more' in it is not one of ours"):
        Store.open(tmp_path)


def test_a_store_that_somebody_has_analysed_is_ours(tmp_path):
    with Store.create(tmp_path) as store:
        store.add([row()])
    with sqlite3.connect(tmp_path / "study.db") as db:
        db.execute("ANALYZE")
    db.close()
    with Store.open(tmp_path) as store:
        assert len(store.rows()) == 1


def test_tables_are_seen_before_they_leave_the_log(tmp_path):
    """A store that is being written has them in its log only."""
    with closing(connect(tmp_path / "study.db")) as db:
        # Whoever reads keeps the log from being emptied.
        db.execute("SELECT * FROM sqlite_master")
        prepare(tmp_path)
        assert (tmp_path / "study.db-wal").stat().st_size
        assert tables_in(tmp_path / "study.db")
        Store.open(tmp_path).close()


@pytest.mark.parametrize("name", [*FILES, "artefacts", "report.html", "anything"])
def test_a_folder_with_a_link_is_refused_and_what_is_behind_it_stays(name, tmp_path):
    away, folder = tmp_path / "away", tmp_path / "s"
    away.write_bytes(b"1234")
    Store.create(folder).close()
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(away)
    with pytest.raises(StoreError, match="is a link"):
        Store.create(folder)
    with pytest.raises(StoreError, match="is a link"):
        Store.open(folder)
    with pytest.raises(StoreError, match="is a link"), only_writer(folder):
        pass
    assert away.read_bytes() == b"1234"


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_another_name_elsewhere_and_a_pipe_are_refused(name, tmp_path):
    away = tmp_path / "away"
    away.write_bytes(b"1234")
    for made in (lambda path: path.hardlink_to(away), os.mkfifo):
        folder = tmp_path / made.__class__.__name__ / str(made is os.mkfifo)
        folder.mkdir(parents=True)
        made(folder / name)
        for use in (Store.create, being_written if name == "writer.lock" else Store.open):
            with pytest.raises(StoreError, match="no study has made it"):
                use(folder)
    assert away.read_bytes() == b"1234"


def test_the_folder_itself_may_be_a_link(tmp_path):
    """Who names a folder decides where it lies: on a larger disk, for instance."""
    (tmp_path / "large").mkdir()
    (tmp_path / "s").symlink_to(tmp_path / "large")
    with Store.create(tmp_path / "s") as store:
        store.add([row()])
    with Store.open(tmp_path / "large") as store:
        assert len(store.rows()) == 1


def test_weights_with_a_name_that_is_none_are_a_damaged_row(tmp_path):
    with Store.create(tmp_path) as store:
        store.add([row(weights="../../victim/model")])
        with pytest.raises(StoreError, match="'a' of this store is damaged.*name of its weights"):
            store.rows()


@pytest.mark.parametrize(
    "figures", [{"accuracy": -1.0}, {"compression": float("inf")}, {"kept": -2}, {"progress": 7.0}]
)
def test_figures_that_no_run_can_have_are_a_damaged_row(figures, tmp_path):
    with Store.create(tmp_path) as store:
        store.add([row(**figures)])
        with pytest.raises(StoreError, match=f"damaged: {next(iter(figures))} is .* outside 0 to"):
            store.rows()


def test_a_log_that_goes_with_the_last_reader_disturbs_nobody(tmp_path, monkeypatch):
    """It is listed, and then it is gone."""
    with Store.create(tmp_path) as store:
        store.add([row()])
    links = Artefacts.links

    def last_reader_leaves(self):
        for name in ("study.db-wal", "study.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
        return links(self)

    monkeypatch.setattr(Artefacts, "links", last_reader_leaves)
    for use in (Store.create, Store.open):
        for name in ("study.db-wal", "study.db-shm"):
            (tmp_path / name).touch()
        with use(tmp_path) as store:
            assert len(store.rows()) == 1


def test_a_file_read_while_its_log_is_moved_into_it_is_read_again(tmp_path, monkeypatch):
    with Store.create(tmp_path) as store:
        store.add([row()])
    path = tmp_path / "study.db"
    whole, pauses = path.read_bytes(), []

    def finish_moving(seconds):
        pauses.append(seconds)
        path.write_bytes(whole)

    monkeypatch.setattr(database.time, "sleep", finish_moving)
    path.write_bytes(whole[: len(whole) // 2])
    with Store.open(tmp_path) as store:
        assert len(store.rows()) == 1
    assert pauses == [0.01]


def test_a_damaged_file_stays_refused(tmp_path):
    Store.create(tmp_path).close()
    path = tmp_path / "study.db"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(StoreError, match="is damaged"):
        Store.open(tmp_path)
