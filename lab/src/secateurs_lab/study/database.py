"""The SQLite file of a study: how it is opened, its tables, and errors in plain words."""

import json
import os
import sqlite3
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from secateurs.errors import StoreError
from secateurs_lab.study.artefacts import Artefacts, is_name, link_error
from secateurs_lab.study.fields import read_fields
from secateurs_lab.study.key import canonical

# File systems that cannot hold a store, because SQLite's locks are not safe over a network.

NETWORKED = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "afs",
    "ncpfs",
    "lustre",
    "ceph",
    "beegfs",
    "gpfs",
    "gfs2",
)


NETWORKED_FUSE = (
    "fuse.sshfs",
    "fuse.glusterfs",
    "fuse.s3fs",
    "fuse.rclone",
    "fuse.gcsfuse",
    "fuse.ceph",
)


def refuse_network(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> None:
    """Refuse network file systems, on which SQLite's locks are not safe."""
    kind = filesystem(folder, mounts)
    if kind in NETWORKED or kind in NETWORKED_FUSE:
        raise StoreError(
            f"{folder} is on a network file system ({kind}), where a crash can damage the store. "
            f"Put it on a local "
            "disk with --store; several machines work together through `--engine ray`, without a "
            "shared folder."
        )


def filesystem(folder: Path, mounts: Path) -> str:
    """The kind of file system this folder is on; "" if unknown."""
    try:
        lines = mounts.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    place, best, kind = folder.resolve(), -1, ""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split()
        point = (
            # A space in a mount point is written as \040.
            Path(fields[4].encode().decode("unicode_escape"))
            if len(fields) > 4
            else Path("/nowhere")
        )
        # The longest mount point counts; among two at the same place the later one, which hides the
        # other.
        if (place == point or point in place.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split()[0] if after else ""
    return kind


VERSION = 2
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
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


def prepare(folder: Path) -> None:
    """Make the folder and its tables."""
    with plain_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    refuse_network(folder)
    with plain_errors(folder), closing(connect(folder / "study.db")) as db, transaction(db):
        # All tables or none: a file with some of them would be taken for that of another.
        for statement in TABLES.split(";"):
            db.execute(statement)
        db.execute(
            "INSERT OR IGNORE INTO notes (name, value) VALUES ('version', ?)",
            (str(VERSION),),
        )
        found = db.execute("SELECT value FROM notes WHERE name = 'version'").fetchone()[0]
    if found != str(VERSION):
        raise StoreError(
            f"{folder} was written by another version (tables {found}, here {VERSION}): use a new "
            f"folder."
        )


def connect(path: Path) -> sqlite3.Connection:
    """A connection that survives crashes and waits for others; read-only if it cannot write."""
    # Before anything is opened for writing, since even that changes a file.
    check_folder(path.parent)
    tables_in(path)
    with plain_errors(path.parent):
        try:
            return _set_up(sqlite3.connect(path, **_OPTIONS))
        except sqlite3.OperationalError:
            if not _readable_as_it_is(path):
                raise
            # A reader of a WAL file needs to write next to it; on a read-only disk without pending
            # changes nobody modifies the file, so it can be read without that.
            where = f"{path.resolve().as_uri()}?immutable=1"
            return _set_up(sqlite3.connect(where, uri=True, **_OPTIONS), wal=False)


# A store may come from elsewhere, and a folder may hold things that are not a study's.

FILES = ("study.db", "study.db-wal", "study.db-shm", "study.db-journal", "writer.lock")
"""Those that are changed in place."""


def check_folder(folder: Path) -> None:
    """Refuse a folder with a link in it, and one in which a file of ours is something else.

    Raises:
        StoreError: what is there, and the way out.
    """
    with plain_errors(folder):
        inside = sorted(folder.iterdir()) if folder.is_dir() else []
        links = [path for path in inside if path.is_symlink()]
    for path in (*links, *Artefacts(folder / "artefacts").links()):
        raise link_error(path)
    for path in inside:
        if path.name not in FILES:
            continue
        with plain_errors(folder):
            try:
                held = path.lstat()
            except FileNotFoundError:  # SQLite's logs go with the last of those who read
                continue
        # A pipe would keep its reader waiting; another name of the same file may be anywhere.
        # A file that is being deleted has no name.
        if not stat.S_ISREG(held.st_mode) or held.st_nlink > 1:
            what = "has other names" if stat.S_ISREG(held.st_mode) else "is not an ordinary file"
            raise StoreError(f"{path} {what}: no study has made it. Choose another with --store.")


def tables_in(path: Path) -> bool:
    """Whether this file has the tables of a study; one that has anything else is refused.

    A view or a trigger runs what its author wrote, whenever a table is read or written: nothing in
    the file is run before this, and not a byte of it is changed.
    """
    with plain_errors(path.parent):
        found = _read_schema(path)
    if found is None:
        return False
    foreign = sorted(name for _, name, _ in found - _our_schema())
    if foreign:
        raise StoreError(
            f"{path} is not the file of a study of this version: {foreign[0]!r} in it is not one"
            " of ours. Choose another folder with --store."
        )
    return found >= _our_schema()


def _read_schema(path: Path) -> set[tuple[str, str, str]] | None:
    """The schema in this file; None if it is missing or empty."""
    # Whoever leaves last moves the log into the file: read in that moment the file looks damaged.
    for pause in (0.01, 0.1, 0.5):
        try:
            return _read_schema_now(path)
        except sqlite3.DatabaseError:
            time.sleep(pause)
    return _read_schema_now(path)


def _read_schema_now(path: Path) -> set[tuple[str, str, str]] | None:
    if not _size(path):
        return None
    # What is new in a log is seen by those who take part; else the file is read as it is.
    pending = _size(path.with_name(f"{path.name}-wal")) > 0
    where = f"{path.resolve().as_uri()}?{'mode=ro' if pending else 'immutable=1'}"
    with closing(sqlite3.connect(where, uri=True, **_OPTIONS)) as db:
        return _schema(db)


def _schema(db: sqlite3.Connection) -> set[tuple[str, str, str]]:
    lines = db.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    # Statistics are SQLite's own, in whoever's file.
    return {
        (kind, name, " ".join((sql or "").split()))
        for kind, name, sql in lines
        if (kind, name) not in {("table", "sqlite_stat1"), ("table", "sqlite_stat4")}
    }


@cache
def _our_schema() -> set[tuple[str, str, str]]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(TABLES)
        return _schema(db)


# isolation_level None: sqlite3 opens no transactions by itself, only `transaction` does.
_OPTIONS: dict[str, Any] = {
    "timeout": 60.0,
    "isolation_level": None,
    "check_same_thread": False,
}


def _set_up(db: sqlite3.Connection, *, wal: bool = True) -> sqlite3.Connection:
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA busy_timeout = 60000")
    # Queried first, because setting the mode takes a lock that readers would have to wait for.
    if wal and db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        db.execute("PRAGMA journal_mode = WAL")
    # In WAL mode anything less may lose the last transactions when the power fails.
    db.execute("PRAGMA synchronous = FULL")
    return db


def _readable_as_it_is(path: Path) -> bool:
    """Whether the file exists, its folder cannot be written, and no log is pending next to it."""
    # A pending log holds transactions that a reader of the file alone would miss.
    waiting = _size(path.with_name(f"{path.name}-wal")) > 0
    return path.is_file() and not os.access(path.parent, os.W_OK) and not waiting


def _size(path: Path) -> int:
    """0 also for a file that is not there, or no longer."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """All or nothing. IMMEDIATE requests the right to write first, so that two connections cannot
    wait for each other.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        yield db
    except BaseException:
        # SQLite may already have rolled back by itself, as it does on a full disk.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


@contextmanager
def plain_errors(folder: Path) -> Iterator[None]:
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


# The parts of a row: points of a training, what is left of each layer, and certificates.


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One moment of a training, as a rule the end of an epoch. What was not measured is None.

    `strength` is λ as it is then, `misalignment` that of the factors (M(ω) ≥ 0), `sparsity` the
    share of zeros
    (|w| < 1.19e-7) of the prunable weights.
    """

    epoch: int
    iteration: int
    loss: float
    test_loss: float | None = None
    test_accuracy: float | None = None
    learning_rate: float | None = None
    sparsity: float | None = None
    strength: float | None = None
    misalignment: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKept:
    """One prunable parameter at the end: what is left of it, and how large."""

    name: str
    shape: tuple[int, ...]
    total: int
    kept: int
    norm: float
    """‖w‖₂."""
    histogram: tuple[int, ...] = ()
    """Counts of the non-zero entries by log10|w|, in the bins of `HISTOGRAM_EDGES`."""
    verdict: str = ""
    """What it means for the network, if no weight is left; empty otherwise."""

    @property
    def density(self) -> float:
        """kept / total."""
        return self.kept / self.total if self.total else 1.0

    @property
    def collapsed(self) -> bool:
        """Whether nothing is left."""
        return self.total > 0 and self.kept == 0


HISTOGRAM_EDGES: tuple[float, ...] = tuple(-8 + 0.25 * k for k in range(41))
"""Edges of the forty bins, as log10 of a magnitude: 1e-8 to 100; what lies outside is in the
outermost bins.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certified:
    """What is known of the distance between the sparse network and its dense one.

    `kind` is "proven" (holds for every input of `domain`) or "statistical" (for fresh inputs, with
    the confidence
    that `text` says). `certified_share`: of the inputs looked at, those that provably keep their
    class.
    """

    kind: str
    domain: str
    bound: float
    lower_bound: float
    certified_share: float | None = None
    method: str = ""
    text: str = ""


# A run's row: everything that a table, a figure or a reader wants to know about one run.

State: TypeAlias = Literal[
    "waiting", "running", "done", "diverged", "collapsed", "failed", "cancelled"
]
ENDED: tuple[str, ...] = ("done", "diverged", "collapsed", "failed", "cancelled")
"""Closed vocabulary of ends: done; diverged (the loss became NaN or infinite); collapsed (the
network no longer depends
on its input); failed (an error, see the reason); cancelled (asked to stop for good)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A run as recorded in the store.

    Attributes:
        key: The run's name, a hash of its settings.
        label: The method's title in tables; equal for all runs of one method.
        kind: "dense", "prune", "imp", "gradual", "dwf", or another name of `METHODS`.
        data, model: Their names.
        seed: The run's seed.
        asked: The compression asked for, or None.
        strength: λ of methods that have one.
        state, reason: The state of the run; why it ended that way, if it is not done.
        accuracy: Final test accuracy as a share; None before the end.
        compression, sparsity: Final total/kept and 1 − kept/total of the prunable parameters.
        kept, total: Their entries.
        seconds: Wall time of the run's own stages.
        progress: From 0 to 1.
        hidden: Only a step of other runs (the network to rewind to): no line in a figure.
        settings: Every setting, nested plain values, with the keys of the runs it needs as "parent"
        and "rewind".
        metrics: All final numbers by name: accuracy, loss, accuracy_before (after the cut, before
            training), cost.share (multiplications of this training beside those of a dense one),
            cost.steps (the same as a number of dense steps), ...; your own metrics under
            "own.NAME".
        history: The training over time.
        layers: Remaining weights, layer by layer.
        rows: Rows of a table, for a job that trains no network.
        certificates: What is known about the distance to the dense network.
        timings: Seconds per stage: "begin", "cut", "train", "collapse", "certify", "measure".
        provenance: versions, data hash, seed, threads, machine, device, precision, begun, ended,
        attempts.
        weights: The name (a hash) of the final weights in the store, as `Store.tensors` takes it;
        None if not kept.
        weights_hash: Hash over names, shapes and bytes of the final weights: equal runs have equal
        ones.
    """

    key: str
    label: str
    kind: str
    data: str
    model: str
    seed: int
    asked: float | None = None
    strength: float | None = None
    state: State = "waiting"
    reason: str = ""
    accuracy: float | None = None
    compression: float | None = None
    sparsity: float | None = None
    kept: int | None = None
    total: int | None = None
    seconds: float = 0.0
    progress: float = 0.0
    hidden: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    history: tuple[Point, ...] = ()
    layers: tuple[LayerKept, ...] = ()
    certificates: tuple[Certified, ...] = ()
    rows: tuple[Mapping[str, str], ...] = ()
    timings: Mapping[str, float] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None
    weights_hash: str | None = None

    @property
    def ended(self) -> bool:
        """Whether the run has come to an end, good or bad."""
        return self.state in ENDED

    @property
    def summary(self) -> dict[str, Any]:
        """The columns of a listing, without nested fields."""
        return {name: getattr(self, name) for name in SUMMARY}

    def details(self) -> str:
        """The nested fields as JSON."""
        nested = {name: _plain(getattr(self, name)) for name in NESTED if name != "rows"}
        # Settings are sorted, as in keys; the columns of a table stay in their order.
        ordered = json.loads(json.dumps(nested, sort_keys=True))
        return json.dumps({**ordered, "rows": self.rows})

    def result(self) -> str:
        """The parts that equal runs share, as text to compare: no times, no machine."""
        same = {
            name: getattr(self, name)
            for name in ("key", "state", "accuracy", "compression", "kept", "total")
        }
        history = [{**asdict(point), "seconds": 0.0} for point in self.history]
        return canonical({**same, "weights": self.weights_hash, "history": history})


# Everything that a listing does not show is kept in one column and read only on request.
NESTED = (
    "settings",
    "metrics",
    "history",
    "layers",
    "certificates",
    "rows",
    "timings",
    "provenance",
)
SUMMARY = tuple(entry.name for entry in fields(Row) if entry.name not in NESTED)


_LIMITS = {
    **dict.fromkeys(("accuracy", "sparsity", "progress"), (0, 1)),
    **dict.fromkeys(("asked", "strength", "compression", "seconds"), (0, sys.float_info.max)),
    **dict.fromkeys(("kept", "total", "seed"), (0, 2**63)),
}
"""What the numbers of a run lie in; a figure of others would have no scale."""


def row_of(summary: Mapping[str, Any], details: str | None = None) -> Row:
    """The row of a listing's columns and, if given, its nested part.

    A file from elsewhere can hold anything under these names; values that no run of ours can have
    written are refused with their place.
    """
    try:
        # SQLite has no booleans: `hidden` comes back as 0 or 1.
        columns = {**summary, "hidden": summary["hidden"] != 0}
        nested = {} if details is None else json.loads(details)
        row = Row(**read_fields(Row, nested) | read_fields(Row, columns))
        for name, (least, most) in _LIMITS.items():
            if (value := getattr(row, name)) is not None and not least <= value <= most:
                raise ValueError(f"{name} is {value!r}, outside {least} to {most}")
        if row.weights is not None and not is_name(row.weights):
            raise ValueError(f"{row.weights!r} is not the name of its weights")
        return row
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"the run {summary.get('key')!r} of this store is damaged: {error}. Restore study.db"
            " from a copy, or begin in a new folder with --store."
        ) from error


def _plain(value: Any) -> Any:
    return [asdict(entry) for entry in value] if isinstance(value, tuple) else value
