"""Folders of studies from elsewhere, drawn at random: links, pipes, foreign files and tables, and
rows that no run has written. A victim beside the folder, and foreign files in it, must stay as
they are, and every command must end.
"""

import faulthandler
import os
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import typer

from secateurs.errors import SecateursError
from secateurs_lab.cli import study as commands
from secateurs_lab.study.file import parse
from secateurs_lab.study.sweep import run

STUDY = """
name = "victim"
data = { name = "digits", train = 64, test = 50 }
model = "lenet-300-100"
compressions = [4]
save = false
[train]
length = "1ep"
batch = 64
[[methods]]
kind = "prune"
"""
PATIENCE = 120
"""Seconds after which a command counts as one that never ends."""


def honest_store(folder: Path) -> Path:
    """A finished study that remembers its text, one run of which waits again."""
    with run(parse(STUDY, file="study.toml"), folder, watchers=()) as done:
        done.remember("study", {"name": "victim", "text": STUDY})
        done.reset(done.rows()[0].key)
        done.artefacts.put(b"nothing refers to this")
    return folder


@dataclass
class Tally:
    """What was seen: the ends of commands, and what may not happen."""

    ends: Counter = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


def attack_store(seed: int, honest: Path, root: Path, tally: Tally) -> None:
    """One hostile folder, and every command on it."""
    draw = random.Random(seed)
    store, victim = root / f"{seed}.study", root / f"{seed}-victim"
    shutil.copytree(honest, store)
    for name in ("model.safetensors", "study.db", "deep/letter.txt", f"{'a' * 64}.safetensors"):
        (victim / name).parent.mkdir(parents=True, exist_ok=True)
        (victim / name).write_bytes(draw.randbytes(300))
    foreign = [made for _ in range(draw.randint(1, 3)) for made in draw.choice(HOSTILE)(
        draw, store, victim
    )]  # fmt: skip
    before = {path: _state(path) for path in (victim, *foreign)}
    for name, command in COMMANDS:
        tally.ends[name, _end(command, store)] += 1
        for path, state in before.items():
            if _state(path) != state:
                tally.violations.append(f"seed {seed}: {name} has changed {path}")
                return


def _end(command: Callable[[Path], None], store: Path) -> str:
    # Inside SQLite no handler of Python's would run: the process ends, and says where it was.
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            command(store)
    except (SecateursError, typer.Exit) as error:
        return type(error).__name__
    finally:
        faulthandler.cancel_dump_traceback_later()
    return "done"


COMMANDS: tuple[tuple[str, Callable[[Path], None]], ...] = (
    ("status", lambda store: commands.status(store)),
    ("cancel", lambda store: commands.cancel(store, "no such key")),
    ("export", lambda store: commands.export(store, store.parent / f"{store.stem}.csv")),
    ("report", lambda store: commands.report(store)),
    ("resume", lambda store: commands.resume(store, engine="in-process")),
    ("resume --again", lambda store: commands.resume(store, engine="in-process", again=True)),
    ("run", lambda store: commands.run(_file(store), store=store, engine="in-process")),
)


def _file(store: Path) -> Path:
    file = store.with_suffix(".toml")
    file.write_text(STUDY)
    return file


def _state(path: Path) -> object:
    """Everything about a file or folder, links not followed."""
    if path.is_symlink():
        return os.readlink(path)
    if path.is_dir():
        return {entry.name: _state(entry) for entry in sorted(path.iterdir())}
    if not path.is_file():
        return path.lstat().st_mode if os.path.lexists(path) else None
    return path.read_bytes(), path.lstat().st_mode, path.lstat().st_mtime_ns


# What is wrong with a folder. Each returns the files in it that are not the study's.


def _some_place(draw: random.Random, store: Path) -> Path:
    """A name that we use, one like it, or any other."""
    artefacts = sorted((store / "artefacts").glob("*/*"))
    place = draw.choice(
        [
            *(store / name for name in ("study.db", "study.db-wal", "study.db-shm")),
            *(store / name for name in ("writer.lock", "report.html", "tensorboard", "notes")),
            store / "artefacts",
            store / "artefacts" / draw.choice(["zz", "aa", "0", ".aa"]),
            store / "artefacts" / "aa" / f"{'a' * 64}.safetensors",
            store / "artefacts" / "aa" / f"{'a' * 64}.abcdefgh.part",
            *(path.parent for path in artefacts),
            *artefacts,
        ]
    )
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def link(draw: random.Random, store: Path, victim: Path) -> list[Path]:
    """A link to a folder or a file, absolute or relative, or to nothing yet."""
    place = _some_place(draw, store)
    target = draw.choice(
        [victim, victim / "deep", victim / "study.db", victim / "deep/letter.txt", victim / "new"]
    )
    place.symlink_to(target if draw.random() < 0.5 else os.path.relpath(target, place.parent))
    return []


def hard_link(draw: random.Random, store: Path, victim: Path) -> list[Path]:
    """A second name for the victim's file."""
    _some_place(draw, store).hardlink_to(victim / "study.db")
    return []


def pipe(draw: random.Random, store: Path, victim: Path) -> list[Path]:
    """A pipe, which keeps its reader waiting."""
    os.mkfifo(_some_place(draw, store))
    return []


def files(draw: random.Random, store: Path, victim: Path) -> list[Path]:
    """Things of somebody who keeps a study in the folder of a project."""
    made = []
    for name in (
        "artefacts/models/mine.bin", "artefacts/ab/notes.txt", "artefacts/top.txt",
        f"artefacts/ab/{'c' * 64}.safetensors", f"artefacts/ab/{'a' * 63}.safetensors",
        "artefacts/ab/.x.part", "report.html", "tensorboard/magnitude/events", "src/main.py",
    ):  # fmt: skip
        path = store / name
        if draw.random() < 0.7 and not os.path.lexists(path) and not _through_link(path, store):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(draw.randbytes(40))
            made.append(path)
    return made


def lock(draw: random.Random, store: Path, victim: Path) -> list[Path]:
    """A lock file of another program."""
    path = store / "writer.lock"
    if os.path.lexists(path):
        path.unlink()
    path.write_text(draw.choice(["owner: me\n", "12 34", "x" * 500]))
    return [path]


def tables(draw: random.Random, store: Path, victim: Path) -> list[Path]:
    """The database of another program, or a study's with more in it than tables of ours."""
    path = store / "study.db"
    for name in ("study.db", "study.db-wal", "study.db-shm"):
        (store / name).unlink(missing_ok=True)
    ends = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"
    columns = ", ".join(f"i AS {name}" for name in COLUMNS)
    with sqlite3.connect(path) as db:
        if draw.random() < 0.3:
            db.execute("PRAGMA journal_mode = WAL")
        for statement in draw.choice(
            [
                ["CREATE TABLE mine (x)", "INSERT INTO mine VALUES (1)"],
                [f"CREATE VIEW runs AS {ends} {columns} FROM n"],
                [
                    f"CREATE VIEW runs AS {ends} {columns} FROM n",
                    f"CREATE VIEW held AS {ends} i AS key, i AS purpose, i AS name FROM n",
                    f"CREATE VIEW notes AS {ends} i AS name, i AS value FROM n",
                ],
                [
                    "CREATE TABLE runs (key TEXT)",
                    f"CREATE TRIGGER t INSERT ON runs BEGIN {ends} i FROM n; END",
                ],
            ]
        ):
            db.execute(statement)
    db.close()
    return [path]


def trigger(draw: random.Random, store: Path, victim: Path) -> list[Path]:
    """Our tables, and one thing more that runs when they are used."""
    path = store / "study.db"
    if path.is_symlink() or not path.is_file() or path.stat().st_nlink != 1:
        return []
    ends = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"
    try:
        with sqlite3.connect(path) as db:
            db.execute(
                draw.choice(
                    [
                        f"CREATE TRIGGER t BEFORE UPDATE ON runs BEGIN {ends} sum(i) FROM n; END",
                        "CREATE VIEW more AS SELECT * FROM runs",
                        "CREATE INDEX more ON runs (abs(seed))",
                        "CREATE TABLE more (x)",
                    ]
                )
            )
        db.close()
    except sqlite3.DatabaseError:
        return []
    return []


def rows(draw: random.Random, store: Path, victim: Path) -> list[Path]:
    """Rows that no run has written."""
    path = store / "study.db"
    if path.is_symlink() or not path.is_file() or path.stat().st_nlink != 1:
        return []
    away = os.path.relpath(victim / "model", store / "artefacts" / "..")
    name = draw.choice(
        [away, f"../{away}", f"../../{away}", str(victim / "model"), "", "a" * 64, 7]
    )
    statement, values = draw.choice(
        [
            ("UPDATE runs SET weights = ?", (name,)),
            ("UPDATE runs SET weights = ?, state = 'done'", (name,)),
            ("INSERT INTO held SELECT key, 'checkpoint', ? FROM runs", (name,)),
            ("UPDATE runs SET state = ?", (draw.choice(["running", "done", "", "other"]),)),
            ("UPDATE runs SET details = ?", (draw.choice(["[]", "{", "{}", "[" * 5000, "7"]),)),
            ("UPDATE runs SET label = ?", (draw.choice(["..", "../../x", "\x1b[2J", "a\nb"]),)),
            ("UPDATE runs SET accuracy = ?", (draw.choice([b"\xff", "x", 1e999, -1]),)),
            ("UPDATE notes SET value = ? WHERE name = 'study'", (draw.choice(["", "[]", "{}"]),)),
        ]
    )
    try:
        with sqlite3.connect(path) as db:
            # An endless trigger may have been put there before.
            db.set_progress_handler(lambda: 1, 1_000_000)
            db.execute(statement, values)
        db.close()
    except sqlite3.DatabaseError:
        return []
    return []


def _through_link(path: Path, store: Path) -> bool:
    above = [place for place in path.parents if store in place.parents]
    return any(place.is_symlink() or (place.exists() and not place.is_dir()) for place in above)


HOSTILE = (link, link, hard_link, pipe, files, files, lock, tables, trigger, rows, rows)
COLUMNS = (
    "key", "label", "kind", "data", "model", "seed", "asked", "strength", "state", "reason",
    "accuracy", "compression", "sparsity", "kept", "total", "seconds", "progress", "hidden",
    "weights", "weights_hash", "position", "details",
)  # fmt: skip
