"""Tables of a study for other tools: what is read back is what the store holds."""

import csv
import json

import pytest

from lab.study.example import example_store
from secateurs_lab.study.export import TABLES, export


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "example.study"
    with example_store(folder, seeds=1) as made:
        yield made


def same(text, value):
    """CSV has no types: there True is a word, and a number is what its text says."""
    if value is None or isinstance(value, str):
        return text == (value or "")
    return {"True": 1, "False": 0}.get(text) == value or float(text) == value


@pytest.mark.parametrize("table", TABLES)
def test_parquet_holds_what_csv_holds(store, table, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    plain = export(store, tmp_path / "t.csv", table=table)
    typed = parquet.read_table(export(store, tmp_path / "t.parquet", table=table))
    with plain.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        lines = list(reader)
    # No method of this study writes rows of its own: that table has only its names.
    assert typed.column_names == list(reader.fieldnames or ())
    for line, row in zip(lines, typed.to_pylist(), strict=True):
        for name, value in row.items():
            assert same(line[name], value), (name, line[name], value)


def test_columns_of_parquet_have_types(store, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(export(store, tmp_path / "t.parquet"))
    kinds = {field.name: str(field.type) for field in table.schema}
    assert (kinds["key"], kinds["seed"], kinds["accuracy"]) == (
        "string",
        "int64",
        "double",
    )
    assert table.column("accuracy").to_pylist() == [r.accuracy for r in store.rows()]
    rows = parquet.read_table(export(store, tmp_path / "h.parquet", table="history"))
    assert rows.num_rows == sum(len(row.history) for row in store.rows())


def test_lists_and_settings_can_be_read_again(store, tmp_path):
    path = export(store, tmp_path / "t.csv")
    with path.open(newline="", encoding="utf-8") as file:
        lines = {line["key"]: line for line in csv.DictReader(file)}
    for row in store.rows():
        line = lines[row.key]
        assert float(line["metrics.loss"]) == row.metrics["loss"]
        assert line["provenance.versions.torch"] == row.provenance["versions"]["torch"]
        decay = row.settings["train"]["decay_at"]
        assert json.loads(line["settings.train.decay_at"]) == list(decay)
