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


@pytest.mark.parametrize("table", TABLES)
def test_a_table_names_its_columns_once_and_fills_every_line(store, table, tmp_path):
    with export(store, tmp_path / "t.csv", table=table).open(newline="", encoding="utf-8") as file:
        names, *lines = csv.reader(file)
    # No method of this study writes rows of its own: that table has no line.
    assert len(set(names)) == len(names) and all(len(line) == len(names) for line in lines)
    ended = len(store.rows())
    expected = {"runs": ended, "history": sum(len(r.history) for r in store.rows()), "rows": 0}
    assert len(lines) == expected.get(table, sum(len(r.layers) for r in store.rows()))


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
