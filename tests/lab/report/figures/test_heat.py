"""A drawn table is a table: rows below each other, columns beside each other, nothing on top."""

import itertools
from xml.etree import ElementTree

import pytest

from secateurs_lab.report.figures import Field, heat


def field(text, share=0.5, warn=False):
    return Field(text=text, share=share, about=f"about {text}", warn=warn)


def table(columns=("one", "two", "three"), names=("first", "second")):
    rows = [
        (name, [field(f"{row}.{column}") for column in range(len(columns))])
        for row, name in enumerate(names)
    ]
    return heat(rows, columns, label="a table")


def boxes(svg):
    """Left, top, right, bottom of every field, in the order of rows and columns."""
    found = []
    for rect in svg.iter("rect"):
        x, y, w, h = (float(rect.get(k)) for k in ("x", "y", "width", "height"))
        found.append((x, y, x + w, y + h))
    return found


def texts(svg):
    return {
        text.text: (float(text.get("x")), float(text.get("y")))
        for text in svg.iter("text")
        if text.get("x")
    }


def test_fields_stand_in_rows_and_columns_and_do_not_touch():
    drawing = table()
    svg = ElementTree.fromstring(drawing.svg())
    found = boxes(svg)
    assert len(found) == 6
    for row in (found[:3], found[3:]):
        assert len({box[1] for box in row}) == 1
        for a, b in itertools.pairwise(row):
            assert 1 <= b[0] - a[2] <= 3
    for above, below in zip(found[:3], found[3:], strict=True):
        assert above[0] == below[0] and 1 <= below[1] - above[3] <= 3
    for left, top, right, bottom in found:
        assert 0 < left < right <= drawing.width and 0 < top < bottom <= drawing.height


def test_each_text_stands_in_its_field_and_each_name_beside_its_row():
    svg = ElementTree.fromstring(table().svg())
    places, found = texts(svg), boxes(svg)
    for number, (left, top, right, bottom) in enumerate(found):
        x, y = places[f"{number // 3}.{number % 3}"]
        assert x == (left + right) / 2 and top < y < bottom
    for row, name in enumerate(("first", "second")):
        x, y = places[name]
        assert x < found[3 * row][0] and found[3 * row][1] < y < found[3 * row][3]
        # It ends there, and its letters have room to the left of it.
        assert x >= 7 * len(name)
    for column, name in enumerate(("one", "two", "three")):
        x, y = places[name]
        assert x == (found[column][0] + found[column][2]) / 2
        assert 0 < y < found[column][1]


def test_long_names_of_columns_are_turned_and_have_room():
    name = "a very long name of a column"
    drawing = table(columns=("short", name))
    plain = table(columns=("short", "brief"))
    assert "rotate(-45)" in drawing.body and "rotate" not in plain.body
    # Turned by 45°, a name of length n needs n/√2 upwards and to the right.
    assert drawing.height - plain.height >= 0.7 * 7 * len(name) - 26
    assert drawing.width - plain.width >= 0.7 * 7 * len(name) - 26
    assert "rotate" not in table(columns=("eightlet",)).body
    assert "rotate" in table(columns=("nineletrs",)).body


@pytest.mark.parametrize(
    ("share", "shade"), [(-1, 0.04), (0, 0.04), (0.5, 0.295), (1, 0.55), (7, 0.55)]
)
def test_the_larger_a_share_the_darker(share, shade):
    drawing = heat([("a", [field("1", share)])], ["b"], label="")
    (rect,) = ElementTree.fromstring(drawing.svg()).iter("rect")
    assert float(rect.get("fill-opacity")) == pytest.approx(shade, abs=0.0051)


def test_a_warning_is_framed_and_a_gap_stays_empty():
    drawing = heat([("a", [None, field("0", 0.0, warn=True)])], ["b", "c"], label="")
    svg = ElementTree.fromstring(drawing.svg())
    (rect,) = svg.iter("rect")
    assert rect.get("fill") == "none" and rect.get("stroke-width") == "2"
    full = boxes(ElementTree.fromstring(table(columns=("b", "c"), names=("a",)).svg()))
    assert boxes(svg) == [full[1]]
    assert heat([], ["b"], label="") is None and heat([("a", [])], [], label="") is None
