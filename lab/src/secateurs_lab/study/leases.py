"""Leases: the right of one worker to deliver the result of one run; a replaced token is refused.

Tokens only grow (even across restarts, and whatever the clock does), so a late worker can never be
mistaken for a new one.
"""

import sqlite3
from dataclasses import dataclass

from secateurs.errors import StaleLease
from secateurs_lab.study.database import Row
from secateurs_lab.study.store import Store, update


@dataclass(frozen=True, slots=True)
class Lease:
    """The run of this key belongs to `owner` until another token is given out."""

    key: str
    token: int
    owner: str


def lease(store: Store, key: str, owner: str) -> Lease:
    """Give the run to this owner; any earlier lease becomes void."""
    with store.writing() as db:
        db.execute("DELETE FROM leases WHERE key = ?", (key,))
        cursor = db.execute(
            # A new row instead of a changed one: AUTOINCREMENT never gives a token twice.
            "INSERT INTO leases (key, owner) VALUES (?, ?)",
            (key, owner),
        )
        db.execute(
            "UPDATE runs SET state = 'running', reason = '', progress = 0 WHERE key = ?",
            (key,),
        )
        return Lease(key, int(cursor.lastrowid or 0), owner)


def finish(store: Store, held: Lease, row: Row) -> None:
    """Write the result and end the lease in one transaction; refused if the lease is void."""
    with store.writing() as db:
        _check(db, held)
        # In one transaction with the check: nobody can take the run back in between.
        update(db, row)
        db.execute("DELETE FROM leases WHERE key = ?", (held.key,))
        db.execute("DELETE FROM held WHERE key = ?", (held.key,))


def hold(store: Store, held: Lease, purpose: str, name: str) -> None:
    """Record an artefact of the run (a checkpoint); refused if the lease is void."""
    with store.writing() as db:
        _check(db, held)
        db.execute(
            "INSERT OR REPLACE INTO held (key, purpose, name) VALUES (?, ?, ?)",
            (held.key, purpose, name),
        )


def release(store: Store, key: str, *, state: str = "waiting", reason: str = "") -> None:
    """Take the run back: from now on its former owner is too late."""
    with store.writing() as db:
        db.execute("DELETE FROM leases WHERE key = ?", (key,))
        db.execute(
            "UPDATE runs SET state = ?, reason = ? WHERE key = ?",
            (state, reason, key),
        )


def release_all(store: Store) -> int:
    """Take back every run that an earlier driver left behind; returns how many."""
    with store.writing() as db:
        db.execute("DELETE FROM leases")
        return db.execute("UPDATE runs SET state = 'waiting' WHERE state = 'running'").rowcount


def _check(db: sqlite3.Connection, held: Lease) -> None:
    line = db.execute("SELECT token, owner FROM leases WHERE key = ?", (held.key,)).fetchone()
    if line is None or line["token"] != held.token:
        whom = "taken back" if line is None else f"given to {line['owner']}"
        raise StaleLease(
            f"{held.owner} comes too late with {held.key}: the run was {whom} meanwhile."
        )
