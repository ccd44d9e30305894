"""Published figures: those that ship, and files of one's own."""

from dataclasses import replace

import pytest

from lab.study.example import example_store
from secateurs.errors import DataError
from secateurs_lab.report import page, read_published, write_page
from secateurs_lab.report.published import names_in_print, printed_lines, shipped_figures
from secateurs_lab.study import Prune, Study, Training, run
from secateurs_lab.study.file import StudyFileError, parse


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    with example_store(tmp_path_factory.mktemp("published") / "a.study") as store:
        return [replace(row, data="fashion-mnist") for row in store.rows()]


def test_the_figures_of_the_paper_as_printed():
    found = {
        (p.method, p.compression): (p.accuracy, p.dense)
        for p in shipped_figures()
        if (p.model, p.data) == ("lenet-300-100", "fashion-mnist")
    }
    assert found["dwf-depth-3", 800.0] == (82.35, 89.12)
    assert found["snip", 10.0] == (88.61, 89.12)


def test_print_stands_where_network_and_data_are_the_same(rows):
    same, other = (
        printed_lines(
            shipped_figures(),
            model="lenet-300-100",
            data=data,
            ours={"magnitude": 1, "dwf D=3": 4},
            alike=names_in_print(rows),
        )[0]
        for data in ("fashion-mnist", "digits")
    )
    assert other == []
    named = {line.name.split(" ")[0]: line for line in same}
    assert named["gmp"].colour == 1 and not named["gmp"].hidden
    assert named["dwf-depth-3"].colour == 4 and not named["dwf-depth-3"].hidden
    assert named["random"].hidden and all(line.printed for line in same)


def test_the_page_shows_them_dotted_and_measures_them_by_their_own_dense_network(
    rows,
):
    text = page(rows, name="a", published=shipped_figures())
    assert "gmp (Kolb et al. 2025, table 2)" in text and 'stroke-dasharray="1.5 4"' in text
    assert "printed" not in page(rows, name="a").partition("<body>")[2].lower()


def test_a_file_of_ones_own(tmp_path, rows):
    path = tmp_path / "print.csv"
    path.write_text("method,compression,accuracy,source\nX,10,91.5,Somebody 2024\n")
    (figure,) = read_published(path)
    assert (figure.method, figure.compression, figure.accuracy) == ("X", 10.0, 91.5)
    text = page(rows, name="a", published=[figure])
    assert "X (Somebody 2024)" in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "accuracy, compression, method"),
        ("method,accuracy\na,1\n", "compression"),
        ("method,compression,accuracy\na,ten,1\n", r"print.csv:2: .*'ten'"),
        ("method,compression,accuracy\na,10\n", "print.csv:2"),
        ("method,compression,accuracy\na,0.5,3\n", "at least 1"),
        ("method,compression,accuracy\na,nan,3\n", "at least 1"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path, text, said):
    path = tmp_path / "print.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=said):
        read_published(path)


def test_the_dense_network_itself_may_be_in_a_file(tmp_path):
    path = tmp_path / "print.csv"
    path.write_text("method,compression,accuracy\nX,1,93\n")
    assert [f.compression for f in read_published(path)] == [1.0]


def test_a_study_names_its_own(tmp_path):
    curves = {"SNIP 2019": [[10, 88.6], [50, 82.1]]}
    study = Study(
        name="a",
        methods=[Prune()],
        compressions=[5],
        train=Training(length="1ep"),
        published=curves,
    )
    run(study, tmp_path / "a.study").close()
    text = write_page(tmp_path / "a.study", tmp_path / "a.html").read_text()
    assert "SNIP 2019, printed: 88.60 % at 10×" in text


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('published = "a.csv"', ": 'a.csv' is not a table"),
        ("published = { a = [] }", r"\.a: the list is empty"),
        ("published = { a = [[10]] }", r"\.a\[1\]: \[10\] is not a list of 2"),
        ("published = { a = [[10, 101]] }", r"\.a\[1\]\[2\]: 101 is not between 0 and 100"),
        ("published = { a = [[0.1, 50]] }", r"\.a\[1\]\[1\]: 0.1 is not at least 1"),
    ],
)
def test_wrong_figures_of_a_study_are_refused_with_their_line(value, said):
    with pytest.raises(StudyFileError, match=f"study.toml:2: published{said}"):
        parse(f'data = "digits"\n{value}\n')
