"""A store that somebody else wrote: any value in any column is refused in words, or is text."""

import json
import sqlite3

import pytest

from secateurs.cli import main
from secateurs.errors import StoreError
from secateurs.study import Store
from secateurs.study.database import SUMMARY
from study.example import example_store

READ = (
    ["status"],
    ["status", "--runs"],
    ["status", "--json"],
    ["report"],
    ["report", "--figures", "figures"],
    ["export", "-o", "runs.csv"],
    ["export", "-o", "history.csv", "--table", "history"],
    ["export", "-o", "layers.csv", "--table", "layers"],
    ["resume"],
)
"""Every command that reads a store."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "a.study"
    example_store(folder, seeds=1).close()
    return (folder / "study.db").read_bytes()


@pytest.fixture
def folder(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.study"
    path.mkdir()
    (path / "study.db").write_bytes(whole)
    return path


def change(folder, statement, *values):
    db = sqlite3.connect(folder / "study.db")
    with db:
        db.execute(statement, values)
    db.close()


def read_by_all(folder, capsys, commands=READ):
    """What every command that reads a store says of it; no traceback, and exit code 0 or 2."""
    said = []
    for command, *options in commands:
        try:
            main(["study", command, str(folder), *options])
            code = 0
        except SystemExit as left:
            code = left.code
        told = capsys.readouterr()
        assert code in (0, 2, None)
        assert code != 2 or told.err.startswith("error: ")
        said.append(told.err if code == 2 else "")
    return said


@pytest.mark.parametrize("column", [*SUMMARY, "details"])
def test_bytes_in_any_column_are_refused_by_name(folder, column):
    change(folder, f"UPDATE runs SET {column} = ? WHERE position = 2", b"\xff\x00evil")
    told = f"{column!r} of study.db holds 6 raw bytes"
    with Store.open(folder) as opened, pytest.raises(StoreError, match=told):
        opened.rows(hidden=True)


@pytest.mark.parametrize("column", ["label", "accuracy", "hidden", "details"])
def test_every_command_refuses_bytes_in_words(folder, column, capsys):
    change(folder, f"UPDATE runs SET {column} = ? WHERE position = 2", b"\xff\x00evil")
    for command, said in zip(READ, read_by_all(folder, capsys), strict=True):
        if column == "details" and command[0] == "status":
            assert not said  # a listing does not read them
        elif command[0] == "resume":
            continue  # an example's study cannot run; it is refused for that, or for this
        elif column == "hidden" and command[0] == "export":
            assert not said  # what is hidden is not asked for
        else:
            assert f"{column!r} of study.db holds 6 raw bytes" in said, command


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("seed", "x", "seed is 'x' instead of a whole number"),
        ("accuracy", "high", "accuracy is 'high' instead of a number"),
        ("state", "won", "state is 'won', none of waiting"),
        ("label", 5, None),  # a column of text makes text of it
        ("hidden", 7, None),
    ],
)
def test_other_values_than_ours_are_refused_by_place(folder, column, value, told, capsys):
    change(folder, f"UPDATE runs SET {column} = ? WHERE position = 1", value)
    said = read_by_all(folder, capsys)[:-1]
    assert all(told in each if told else not each for each in said)


ROOTS = [None, 5, "x", [], [1], {"history": 5}, {"history": [{"epoch": 1}]}]
INSIDE = {
    "settings": [None, 5, ["a"]],
    "metrics": [{"accuracy": "x"}, [1], None],
    "history": [[None], [{"epoch": "x"}], [{"nobody": 1}], {}],
    "layers": [[{"name": 1}], [{"name": "a", "shape": 3}], [[]]],
    "certificates": [[{"kind": None}], "x"],
    "timings": [{"begin": []}, 3],
    "provenance": [7, None],
}
DETAILS = [
    *map(json.dumps, ROOTS),
    "",
    "{",
    "[" * 100_000,
    *(json.dumps({name: value}) for name, them in INSIDE.items() for value in them),
]


@pytest.mark.parametrize("details", DETAILS, ids=lambda text: text[:40] or "empty")
def test_details_of_any_kind_are_refused_by_place(folder, details):
    change(folder, "UPDATE runs SET details = ? WHERE position = 0", details)
    with Store.open(folder) as opened:
        with pytest.raises(StoreError, match="of this store is damaged: "):
            opened.rows()
        assert opened.rows(details=False)


@pytest.mark.parametrize("name", ["study", "published", "metrics"])
@pytest.mark.parametrize(
    "value",
    [b"\xff", "{", "[1]", "5", '{"text": 5, "name": []}', '{"a": 5}', '{"a": [5]}'],
    ids=str,
)
def test_notes_of_any_kind(folder, name, value, capsys):
    change(
        folder,
        "INSERT OR REPLACE INTO notes (name, value) VALUES (?, ?)",
        name,
        value,
    )
    read_by_all(folder, capsys, (["report"], ["resume"]))


def test_a_version_that_is_no_number_is_refused(folder):
    change(folder, "UPDATE notes SET value = 'x' WHERE name = 'version'")
    with pytest.raises(StoreError, match="another version"):
        Store.create(folder)
