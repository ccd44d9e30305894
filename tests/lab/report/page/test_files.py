"""Figures and tables as files: readable by the programs that they are for."""

import csv
import io
import xml.etree.ElementTree as tree
from dataclasses import replace

import pytest

from lab.study.example import example_store
from secateurs_lab.report import parts, write_page
from secateurs_lab.report.tables import Table
from secateurs_lab.study import Store

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The figures of an example's page."""
    path = tmp_path_factory.mktemp("files")
    example_store(path / "a.study").close()
    write_page(path / "a.study", path / "a.html", figures=path / "figures")
    return path / "figures"


def test_every_panel_has_its_files(folder):
    with Store.open(folder.parent / "a.study") as store:
        ((_, panels),) = parts(store.rows())
    for panel in panels:
        endings = ("csv", "svg") if panel.drawing else ("csv", "md", "tex")
        for ending in endings:
            assert (folder / f"{panel.name}.{ending}").stat().st_size > 50
    assert (folder / "overlap-4.svg").exists()
    assert not list(folder.glob(".*"))


def test_figures_are_whole_drawings_with_their_own_colours_and_legend(folder):
    for path in folder.glob("*.svg"):
        root = tree.parse(path).getroot()
        assert root.tag == f"{SVG}svg"
        assert "prefers-color-scheme:dark" in root.find(f"{SVG}style").text
    texts = [e.text for e in tree.parse(folder / "frontier.svg").iter(f"{SVG}text")]
    assert {"magnitude", "imp", "dwf D=3", "test accuracy %"} <= set(texts)


def test_the_numbers_of_the_frontier_are_those_of_the_rows(folder):
    with (folder / "frontier.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    with Store.open(folder.parent / "a.study") as store:
        found = [r for r in store.rows() if r.label == "magnitude" and r.asked == 16]
    accuracies = sorted(100 * row.accuracy for row in found)
    (line,) = (l for l in lines if (l["method"], l["compression"]) == ("magnitude", "16"))
    numbers = [float(line[name]) for name in ("least", "accuracy %", "most")]
    assert numbers == pytest.approx(accuracies, abs=0.005)


def test_a_table_in_four_languages():
    nasty = "a|b & 50 % of $x_1$ {\\} <b>~^#"
    table = Table(columns=("name", "×"), cells=((nasty, "1,2"),))
    assert list(csv.reader(io.StringIO(table.csv()))) == [
        ["name", "×"],
        [nasty, "1,2"],
    ]
    assert "<b>" not in table.html() and "&lt;b&gt;" in table.html()
    assert "a\\|b" in table.markdown()
    latex = table.latex().splitlines()
    assert latex[0] == "\\begin{tabular}{lr}" and latex[-1] == "\\end{tabular}"
    assert latex[4] == (
        "a$|$b \\& 50 \\% of \\$x\\_1\\$ \\{\\textbackslash{}\\} "
        "$<$b$>$\\textasciitilde{}\\textasciicircum{}\\# & 1,2 \\\\"
    )


def test_a_long_table_is_whole_in_its_file_only():
    table = Table(columns=("n",), cells=tuple((str(n),) for n in range(1000)))
    assert table.html().count("<tr>") == 401 and "600 more lines" in table.html()
    assert table.csv().count("\n") == 1001


def test_files_of_several_networks_do_not_meet(tmp_path):
    store = example_store(tmp_path / "a.study", seeds=1)
    rows = store.rows()
    store.close()
    both = parts([*rows, *(replace(row, model="a/b ../c") for row in rows)])
    from secateurs_lab.report import write_files

    written = write_files(tmp_path / "out", both)
    assert len({path.name for path in written}) == len(written)
    assert all(path.parent == tmp_path / "out" for path in written)
