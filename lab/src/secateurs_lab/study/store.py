"""The store of a study: a folder with an SQLite file of rows and a folder of artefacts. One process
writes.

::

    digits.study/
      study.db      rows (WAL, synchronous FULL)
      artefacts/    weights and checkpoints as safetensors, named by the hash of their bytes
      writer.lock   held by the one process that writes
"""

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from secateurs.base.safefile import file_locks
from secateurs.errors import StoreError
from secateurs_lab.study import database
from secateurs_lab.study.artefacts import Artefacts
from secateurs_lab.study.database import ENDED, SUMMARY, Row, plain_errors, row_of

if TYPE_CHECKING:
    from torch import Tensor


_COLUMNS = ", ".join(SUMMARY)


class Store:
    """Rows and artefacts of one study.

    Anyone may read while a study runs. `Store.open` reads; the driver of a study takes `writing()`
    for itself.

    >>> import tempfile
    >>> store = Store.create(Path(tempfile.mkdtemp()) / "demo.study")
    >>> net = dict(data="digits", model="lenet-300-100", seed=0)
    >>> store.add([Row(key="a1", label="dense", kind="dense", **net)])
    >>> [row.state for row in store.rows()]
    ['waiting']
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.artefacts = Artefacts(folder / "artefacts")
        self._db = database.connect(folder / "study.db")

    @classmethod
    def create(cls, folder: str | Path) -> "Store":
        """The store in this folder, made if it is not there."""
        folder = Path(folder)
        database.prepare(folder)
        return cls(folder)

    @classmethod
    def open(cls, folder: str | Path) -> "Store":
        """The store in this folder, which must be there."""
        database.check_folder(Path(folder))
        if not database.tables_in(Path(folder) / "study.db"):
            raise StoreError(f"{folder} holds no study: run one with `secateurs study run FILE`.")
        return cls(Path(folder))

    def close(self) -> None:
        """Close the database file."""
        self._db.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---------------------------------------------------------------- reading

    def rows(self, *, details: bool = True, hidden: bool = False) -> list[Row]:
        """All rows in the order of the study; without details only the columns of a listing are
        read.
        """
        more = ", details" if details else ""
        # −1: not part of the study any more, though its result is kept.
        where = " WHERE position >= 0" + ("" if hidden else " AND hidden = 0")
        found = self._read(f"SELECT {_COLUMNS}{more} FROM runs{where} ORDER BY position")
        return [row_of(_summary(line), line["details"] if details else None) for line in found]

    def row(self, key: str) -> Row:
        """One row by its key, or by the beginning of it."""
        found = self._read(f"SELECT {_COLUMNS}, details FROM runs WHERE key LIKE ? || '%'", key)
        if len(found) != 1:
            many = f"{len(found)} runs begin with" if found else "no run has the key"
            raise StoreError(f"{many} {key!r}; `secateurs study status` lists the keys.")
        return row_of(_summary(found[0]), found[0]["details"])

    def counts(self) -> dict[str, int]:
        """Runs by state."""
        lines = self._read(
            "SELECT state, COUNT(*) AS count FROM runs WHERE position >= 0 GROUP BY state"
        )
        return {line["state"]: line["count"] for line in lines}

    def tensors(self, name: str) -> "dict[str, Tensor]":
        """The tensors of an artefact, such as a row's `weights`; damaged files are refused."""
        # Imported here because it loads torch, which readers of rows do not need.
        from safetensors.torch import load

        return load(self.artefacts.get(name))

    def masks(self, row: Row) -> "dict[str, Tensor]":
        """What is kept of each prunable parameter of a finished run, True = kept."""
        if row.weights is None:
            raise StoreError(f"the weights of {row.key} are not in the store.")
        held = self.tensors(row.weights)
        # A weight that trained to exactly zero counts as
        # pruned, as it does in the figures.
        return {layer.name: held[layer.name] != 0 for layer in row.layers}

    def held(self, key: str) -> dict[str, str]:
        """Artefacts of a run that is under way or done, by their purpose."""
        lines = self._read("SELECT purpose, name FROM held WHERE key = ?", key)
        return {line["purpose"]: line["name"] for line in lines}

    def note(self, name: str) -> Any:
        """Something remembered about the study as a whole (its text, the hash of its data), or
        None.
        """
        lines = self._read("SELECT value FROM notes WHERE name = ?", name)
        if not lines:
            return None
        try:
            found = json.loads(lines[0]["value"])
            if not isinstance(found, dict):
                raise ValueError(f"{type(found).__name__} instead of named values")
        except (ValueError, RecursionError, TypeError) as error:
            raise StoreError(
                f"{self.folder}: the note {name!r} of study.db is damaged: {error}. Restore"
                " study.db from a copy, or begin in a new folder with --store."
            ) from error
        return found

    # ---------------------------------------------------------------- writing

    def add(self, rows: Iterable[Row]) -> None:
        """Add the runs of a study. Runs that are there keep their results and get the new label and
        place; other runs stay in the file, hidden.
        """
        with self.writing() as db:
            # All runs leave the study; those that are in it get a place again below.
            db.execute("UPDATE runs SET position = -1")
            for position, row in enumerate(rows):
                marks = ", ".join("?" * len(SUMMARY))
                db.execute(
                    f"INSERT INTO runs ({_COLUMNS}, details, position) VALUES ({marks}, ?, ?) "
                    "ON CONFLICT (key) DO UPDATE SET label = excluded.label, position = "
                    "excluded.position, "
                    "hidden = excluded.hidden",
                    (*row.summary.values(), row.details(), position),
                )

    def begin(self, rows: Iterable[Row]) -> None:
        """Add the runs of a study; whatever a driver that died has left running waits again."""
        self.add(rows)
        with self.writing() as db:
            db.execute("UPDATE runs SET state = 'waiting' WHERE state = 'running'")

    def put(self, row: Row) -> None:
        """Write a run's row as it is now."""
        with self.writing() as db:
            _update(db, row)

    def hold(self, key: str, purpose: str, name: str) -> None:
        """Remember an artefact of a run that is under way, in place of an earlier one."""
        with self.writing() as db:
            db.execute(
                "INSERT OR REPLACE INTO held (key, purpose, name) VALUES (?, ?, ?)",
                (key, purpose, name),
            )

    def finish(self, row: Row) -> None:
        """Write a run's result, and forget what it held on its way, in one transaction."""
        with self.writing() as db:
            _update(db, row)
            db.execute("DELETE FROM held WHERE key = ?", (row.key,))

    def mark(self, key: str, **columns: Any) -> None:
        """Change some columns of a run: state, reason, progress."""
        names = ", ".join(f"{name} = ?" for name in columns)
        with self.writing() as db:
            db.execute(f"UPDATE runs SET {names} WHERE key = ?", (*columns.values(), key))

    def note_progress(self, shares: Mapping[str, float]) -> None:
        """How far runs are, from 0 to 1; a run that is no longer running keeps what it has."""
        with self.writing() as db:
            db.executemany(
                "UPDATE runs SET progress = ? WHERE key = ? AND state = 'running'",
                [(share, key) for key, share in shares.items()],
            )

    def forget(self, key: str, *purposes: str) -> None:
        """Drop artefacts of a run; without purposes, all."""
        some = f" AND purpose IN ({', '.join('?' * len(purposes))})" if purposes else ""
        with self.writing() as db:
            db.execute(f"DELETE FROM held WHERE key = ?{some}", (key, *purposes))

    def reset(self, key: str) -> None:
        """Reset a run, as if it had never started."""
        row = self.row(key)
        # Keeps the run's settings and drops all of its results.
        fresh = Row(
            **{
                n: getattr(row, n)
                for n in (
                    "key",
                    "label",
                    "kind",
                    "data",
                    "model",
                    "seed",
                    "asked",
                    "strength",
                )
            }
        )
        self.put(replace(fresh, hidden=row.hidden, settings=row.settings))
        self.forget(key)

    def remember(self, name: str, value: Any) -> None:
        """Store something about the study as a whole."""
        with self.writing() as db:
            db.execute(
                "INSERT OR REPLACE INTO notes (name, value) VALUES (?, ?)",
                (name, json.dumps(value)),
            )

    def sweep(self) -> int:
        """Delete artefacts that no row names."""
        lines = self._read(
            "SELECT name FROM held UNION SELECT weights AS name FROM runs WHERE weights IS NOT NULL"
        )
        return self.artefacts.sweep(line["name"] for line in lines)

    def unfinished(self) -> list[str]:
        """Keys of runs that have not come to an end."""
        marks = ", ".join("?" * len(ENDED))
        return [
            line["key"]
            for line in self._read(
                f"SELECT key FROM runs WHERE state NOT IN ({marks}) ORDER BY position",
                *ENDED,
            )
        ]

    # ---------------------------------------------------------------- helpers

    def _read(self, statement: str, *values: Any) -> list[sqlite3.Row]:
        with database.plain_errors(self.folder):
            found = self._db.execute(statement, values).fetchall()
        # No column of ours holds bytes, but SQLite lets any column hold them; what is
        # read as text further on would fail somewhere inside.
        damaged = next((line for line in found if bytes in map(type, line)), None)
        if damaged is not None:
            named = zip(damaged.keys(), damaged, strict=True)
            column, held = next(pair for pair in named if isinstance(pair[1], bytes))
            raise StoreError(
                f"{self.folder}: the column {column!r} of study.db holds"
                f" {len(held)} raw bytes, which no run writes. Restore study.db from a"
                " copy, or begin in a new folder with --store."
            )
        return found

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all or nothing."""
        with database.plain_errors(self.folder), database.transaction(self._db) as db:
            yield db


def _update(db: sqlite3.Connection, row: Row) -> None:
    """Write a row within a transaction."""
    names = ", ".join(f"{name} = ?" for name in SUMMARY)
    values = (*row.summary.values(), row.details(), row.key)
    db.execute(f"UPDATE runs SET {names}, details = ? WHERE key = ?", values)


def _summary(line: sqlite3.Row) -> dict[str, Any]:
    return {name: line[name] for name in SUMMARY}


def now() -> str:
    """The time as text, in UTC; for readers only: nothing is decided by clocks."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


# One writer: the process that holds a lock on `writer.lock`, which the system takes back when it
# dies.


def being_written(folder: Path) -> bool:
    """Whether some process writes to this store now."""
    if not (folder / "writer.lock").exists():
        return False
    with plain_errors(folder), _lock_file(folder, os.O_RDONLY) as file:
        # A shared lock, which goes with the file a moment later.
        return not _lock(file, file_locks().LOCK_SH)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Be the one process that writes to this store; refused while another is."""
    with plain_errors(folder):
        file = _lock_file(folder, os.O_RDWR | os.O_CREAT)
    # The lock ends with the file, however this process ends.
    with file:
        who = file.read(100)
        if who.strip() and not who.strip().isdigit():
            raise StoreError(
                f"{folder / 'writer.lock'} is not a study's: it holds other text than the number"
                " of a process. Choose another folder with --store."
            )
        while not _lock(file, file_locks().LOCK_EX):
            # Who only looks whether somebody writes shares the lock with us, a writer does not.
            if not _lock(file, file_locks().LOCK_SH):
                raise StoreError(
                    f"{folder} is being written by another process"
                    f" ({who.decode().strip() or 'unknown'}): wait for it or stop it. Watch it"
                    " with `secateurs study status`."
                )
            file_locks().flock(file, file_locks().LOCK_UN)
            time.sleep(0.001)
        with plain_errors(folder):
            file.seek(0)
            file.truncate()
            file.write(str(os.getpid()).encode())
            file.flush()
        yield


def _lock_file(folder: Path, flags: int) -> BinaryIO:
    database.check_folder(folder)
    handle = os.open(folder / "writer.lock", flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    return os.fdopen(handle, "rb+" if flags & os.O_RDWR else "rb")


def _lock(file: BinaryIO, kind: int) -> bool:
    """Take the lock, unless that would mean to wait."""
    try:
        file_locks().flock(file, kind | file_locks().LOCK_NB)
    except BlockingIOError:
        return False
    return True
