"""What fields accept, by their types; and a store that somebody else wrote: any value in any column
is refused in words, or is text.
"""

import json
import pickle
import sqlite3
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Literal

import pytest

from lab.study.example import example_store
from secateurs import Recipe
from secateurs.cli import main
from secateurs.errors import ArgumentError, StoreError
from secateurs_lab.study import (
    METHODS,
    Dense,
    Dwf,
    Gradual,
    Imp,
    Method,
    Net,
    Prune,
    Store,
    Study,
    Training,
)
from secateurs_lab.study.database import SUMMARY
from secateurs_lab.study.fields import Misfit, as_type, distinct, within
from secateurs_lab.study.key import full_settings

Small = Annotated[int, within(1, 9)]

FIT = [
    (int, 3, 3),
    (float, 3, 3),
    (str | None, None, None),
    (tuple[int, ...], [1, 2], (1, 2)),
    (tuple[int, str], [1, "a"], (1, "a")),
    (int | tuple[int, ...], [1], (1,)),
    (Mapping[str, tuple[int, ...]], {"a": [1]}, {"a": (1,)}),
    (Literal["a", "b"] | float, 0.5, 0.5),
    (Callable[..., Any] | None, len, len),
    (Training, {"length": "3ep"}, Training(length="3ep")),
    (Method, {"kind": "dwf", "strength": [1, 2]}, Dwf(strength=(1, 2))),
]


@pytest.mark.parametrize(("hint", "given", "read"), FIT, ids=range(len(FIT)))
def test_a_value_is_read_as_its_type_has_it(hint, given, read):
    assert as_type(hint, given) == read
    assert as_type(hint, read) == read


MISFITS = [
    (int, True, "True is not a whole number"),
    (int, 1.0, "1.0 is not a whole number"),
    (float, True, "True is not a number"),
    (bool, 1, "1 is not true or false"),
    (str, b"abc", "3 raw bytes is not text"),
    (Small, 10**400, "is not between 1 and 9"),
    (Annotated[float, within(0)], float("nan"), "nan is not finite"),
    (Annotated[float, within(0, above=True)], 0, "0 is not above 0"),
    (Annotated[float, within(0, 1, above=True)], 2, "2 is not above 0 and at most 1"),
    (tuple[Small, ...], [1, 0, 12], "[2]: 0 is not between 1 and 9; [3]: 12 is not between"),
    (tuple[int, int], [1], "[1] is not a list of 2"),
    (Annotated[tuple[int, ...], distinct], [2, 2], "2 is given twice"),
    (Annotated[tuple[int, ...], distinct], [], "the list is empty"),
    (Mapping[str, int], {"a": "b"}, "a: 'b' is not a whole number"),
    (Literal["eps", "gap"] | float, "epz", "'epz' is none of eps, gap; 'epz' is not a number"),
    (Callable[..., Any], "os.system", "'os.system' is not a function, which only Python can give"),
    (Training, {"lr": 0, "batsh": 1}, "batsh: there is no field of a training 'batsh'. Did you me"),
    (Training, {"lr": 0, "batsh": 1}, "lr: 0 is not above 0"),
    (Net, {"init": "x"}, "name is missing"),
]


@pytest.mark.parametrize(("hint", "given", "said"), MISFITS, ids=[said for *_, said in MISFITS])
def test_what_does_not_fit_is_told_with_its_place(hint, given, said):
    with pytest.raises(Misfit) as error:
        as_type(hint, given)
    assert said in str(error.value)
    assert len(str(error.value)) < 500


def test_one_network_or_method_needs_no_list():
    one = Study(model="lenet-5", data="digits", methods=Prune())
    assert one == Study(model=["lenet-5"], data=["digits"], methods=[Prune()])


def test_a_training_given_as_a_table_is_the_same_value():
    assert Study(train={"length": 100}).train == Training(length="100it")


@pytest.mark.parametrize("kind", [Prune, Imp, Gradual])
def test_pruning_is_a_recipe_without_an_amount(kind):
    method = kind(score="snip", pattern="2x2", scope="layer", options={})
    asked = {e.name: getattr(method, e.name) for e in fields(Recipe)} | {"compression": 5}
    assert method.recipe(5) == Recipe(**asked)
    for name in ("sparsity", "density", "compression"):
        with pytest.raises(ArgumentError, match=f"{name}: a study says how much is kept"):
            kind(**{name: 0.5})


@pytest.mark.parametrize("field", [{"scope": {"*": 0.5}}, {"where": ["a"]}, {"options": {"a": {}}}])
def test_what_no_file_can_hold_is_refused_in_a_method(field):
    with pytest.raises(ArgumentError, match=next(iter(field))):
        Prune(**field)


@pytest.mark.parametrize("kind", METHODS.names())
def test_methods_are_copied_and_sent_to_other_processes(kind):
    method = replace(METHODS[kind](), label="mine", train={"lr": 0.5})
    assert pickle.loads(pickle.dumps(method)) == deepcopy(method) == method


def test_a_method_of_ones_own_is_checked_and_has_a_key():
    @dataclass(frozen=True, kw_only=True)
    class Dropped(Method):
        kind: ClassVar[str] = "dropped"
        share: Annotated[float, within(0, 1)] = 0.5

        @staticmethod
        def trainer(job):
            raise NotImplementedError

    with pytest.raises(ArgumentError, match=r"1 problem\(s\) with dropped: share: 2 is not"):
        Dropped(share=2)
    (_, run) = Study(methods=[Dropped(label="mine")]).runs()
    assert full_settings(run)["method"] == {"kind": "dropped", "share": 0.5}
    assert run.key not in {each.key for each in Study(methods=[Dropped(share=0.4)]).runs()}
    assert Dense().title == "dense"


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
        ("seed", "x", "seed: 'x' is not a whole number"),
        ("accuracy", "high", "accuracy: 'high' is not a number"),
        ("state", "won", "state: 'won' is none of waiting"),
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
