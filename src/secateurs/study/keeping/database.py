"""The SQLite file of a study: how it is opened, its tables, and errors in plain words."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from secateurs.errors import StoreError
from secateurs.study.keeping.filesystems import refuse_network

VERSION = 1
"""Of the tables; a file of another version is refused."""

TABLES = """
CREATE TABLE IF NOT EXISTS runs (
    key TEXT PRIMARY KEY, label TEXT NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL, model TEXT
    NOT NULL, seed INTEGER NOT NULL, asked REAL, strength REAL, state TEXT NOT NULL, reason TEXT
    NOT NULL, accuracy REAL, compression REAL, sparsity REAL, kept INTEGER, total INTEGER, seconds
    REAL NOT NULL, progress REAL NOT NULL, hidden INTEGER NOT NULL, weights TEXT, weights_hash TEXT,
    position INTEGER NOT NULL, details TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS by_state ON runs (state);
CREATE TABLE IF NOT EXISTS held (
    key TEXT NOT NULL, purpose TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY (key, purpose)
);
CREATE TABLE IF NOT EXISTS leases (
    token INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, owner TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


def prepare(folder: Path) -> None:
    """Make the folder and its tables."""
    with told(folder):
        folder.mkdir(parents=True, exist_ok=True)
    refuse_network(folder)
    with told(folder):
        db = connect(folder / "study.db")
        db.executescript(TABLES)
        db.execute(
            "INSERT OR IGNORE INTO notes (name, value) VALUES ('version', ?)",
            (str(VERSION),),
        )
        found = db.execute(
            "SELECT value FROM notes WHERE name = 'version'"
        ).fetchone()[0]
        db.close()
    if found != str(VERSION):
        raise StoreError(
            f"{folder} was written by another version (tables {found}, here {VERSION}): use a new "
            f"folder."
        )


def connect(path: Path) -> sqlite3.Connection:
    """A connection that survives crashes and waits for others; for reading only where nothing can
    be written.
    """
    with told(path.parent):
        try:
            return _set_up(sqlite3.connect(path, **_OPTIONS))
        except sqlite3.OperationalError:
            if not _readable_as_it_is(path):
                raise
            # A reader of a WAL file wants to write beside it; on a disk that is read-only and left
            # in order nobody changes the file, so that it can be read without.
            where = f"{path.resolve().as_uri()}?immutable=1"
            return _set_up(sqlite3.connect(where, uri=True, **_OPTIONS), wal=False)


# isolation_level None: sqlite3 opens no
# transactions by itself, `transaction` alone does.
_OPTIONS: dict[str, Any] = {
    "timeout": 60.0,
    "isolation_level": None,
    "check_same_thread": False,
}


def _set_up(db: sqlite3.Connection, *, wal: bool = True) -> sqlite3.Connection:
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA busy_timeout = 60000")
    # Asked first, because setting the mode takes a lock
    # that readers would have to wait for.
    if wal and db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        db.execute("PRAGMA journal_mode = WAL")
    # In WAL mode anything less may lose the last transactions when the power fails.
    db.execute("PRAGMA synchronous = FULL")
    return db


def _readable_as_it_is(path: Path) -> bool:
    """Whether the file is there, its folder cannot be written, and no log waits beside it."""
    # A log that still waits holds transactions which a
    # reader of the file alone would miss.
    log = path.with_name(f"{path.name}-wal")
    waiting = log.exists() and log.stat().st_size > 0
    return path.is_file() and not os.access(path.parent, os.W_OK) and not waiting


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """All or nothing. IMMEDIATE: the right to write is asked for first, so that two cannot wait
    for each other.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        yield db
    except BaseException:
        # SQLite may have rolled back by itself, as it does on a full disk.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


@contextmanager
def told(folder: Path) -> Iterator[None]:
    """Errors of the disk and of SQLite in plain words, with the way out."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(f"{folder}: {_advice(str(error))}") from error
    except OSError as error:
        raise StoreError(
            f"{folder} cannot be written: {error.strerror or error}. Choose another with --store."
        ) from error


def _advice(message: str) -> str:
    if "full" in message or "disk I/O" in message:
        return (
            f"the disk is full or failing ({message}). Free some space, then `secateurs study "
            f"resume`: what is "
            "finished is kept."
        )
    if "readonly" in message or "unable to open" in message:
        return (
            f"the folder cannot be written ({message}). Make it writable or choose another with "
            "--store."
        )
    if "malformed" in message or "not a database" in message:
        return (
            f"study.db is damaged ({message}). Restore it from a copy, or begin in a new "
            "folder with --store."
        )
    return f"{message}."
