"""Figures are read as a reader does: by the numbers beside the axes."""

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from secateurs_lab.report.figures import HEIGHT, SHAPES, WIDTH, chart
from secateurs_lab.report.page import STYLE
from secateurs_lab.report.series import ChartLine, Dot

NUMBER = r"-?\d+(?:\.\d+)?"


def dot(x, y, low=None, high=None, text=""):
    low, high = y if low is None else low, y if high is None else high
    return Dot(x=x, y=y, low=low, high=high, text=text)


LINES = [
    ChartLine(name="a", dots=(dot(1, 90), dot(10, 80, 70, 85), dot(100, 12))),
    ChartLine(name="b", dots=(dot(2, 30), dot(50, 60)), colour=1),
]


def parsed(drawing):
    return ElementTree.fromstring(drawing.svg())


def numbers(text):
    return [float(part) for part in re.findall(NUMBER, text)]


def ticks(svg, *, across):
    """The numbers beside an axis and their places, without the axis' name."""
    anchor = "middle" if across else "end"
    found = []
    for text in svg.iter("text"):
        if text.get("text-anchor") != anchor or text.get("transform"):
            continue
        value = re.fullmatch(NUMBER, (text.text or "").replace(",", ""))
        if value:
            found.append((float(value[0]), float(text.get("x" if across else "y"))))
    return found


def read(place, ticks, *, log):
    """The value at a place, by the first and the last number of the axis."""
    (a, left), (b, right) = ticks[0], ticks[-1]
    share = (place - left) / (right - left)
    if log:
        return 10 ** (math.log10(a) + share * (math.log10(b) - math.log10(a)))
    return a + share * (b - a)


def marked(svg, place):
    """The marks of a line."""
    group = next(g for g in svg.iter("g") if g.get("data-key") == str(place))
    return [path for path in group.iter("path") if path.get("data-t") is not None]


def marks(svg, place):
    """Where the marks of a line are."""
    return [tuple(numbers(path.get("d"))[:2]) for path in marked(svg, place)]


@pytest.mark.parametrize("log_x", [False, True])
@pytest.mark.parametrize("log_y", [False, True])
def test_marks_are_read_back_by_the_numbers_beside_the_axes(log_x, log_y):
    svg = parsed(chart(LINES, x="compression", y="accuracy", log_x=log_x, log_y=log_y))
    across, up = ticks(svg, across=True), ticks(svg, across=False)
    assert len(across) >= 3 and len(up) >= 3
    # The numbers beside the upward axis stand a little below their line, by the height of a letter.
    up = [(value, place - 4.5) for value, place in up]
    for place, line in enumerate(LINES):
        for (left, top), want in zip(marks(svg, place), line.dots, strict=True):
            x, y = read(left, across, log=log_x), read(top, up, log=log_y)
            assert x == pytest.approx(want.x, rel=0.01, abs=0 if log_x else 0.05)
            assert y == pytest.approx(want.y, rel=0.01, abs=0 if log_y else 0.05)


def test_each_number_stands_beside_its_own_line():
    svg = parsed(chart(LINES, x="x", y="y"))
    lines = [numbers(p.get("d")) for p in svg.iter("path") if p.get("opacity") == ".12"]
    # `M left top V bottom` for one axis, `M left top H right` for the other.
    upright = [p[0] for p in lines if p[2] < HEIGHT]
    assert [place for _, place in ticks(svg, across=True)] == upright
    level = [p[1] for p in lines if p[2] > HEIGHT]
    beside = [place - 4.5 for _, place in ticks(svg, across=False)]
    assert beside == pytest.approx(level, abs=0.06)


def test_a_whisker_goes_from_the_least_to_the_most():
    svg = parsed(chart(LINES, x="x", y="y"))
    up = [(value, place - 4.5) for value, place in ticks(svg, across=False)]
    group = next(g for g in svg.iter("g") if g.get("data-key") == "0")
    whiskers = [p.get("d") for p in group.iter("path") if p.get("data-t") is None]
    drawn = [numbers(d.replace("-", " -")) for d in whiskers if d]
    left, _top = marks(svg, 0)[1]
    (whisker,) = [w for w in drawn if abs(w[0] - left) < 5]
    heights = [read(v, up, log=False) for v in whisker if 0 < v < HEIGHT]
    assert any(h == pytest.approx(70, abs=0.3) for h in heights)
    assert any(h == pytest.approx(85, abs=0.3) for h in heights)


def test_a_level_lies_at_its_height():
    svg = parsed(chart(LINES, x="x", y="y", level=("dense", 50.0)))
    up = [(value, place - 4.5) for value, place in ticks(svg, across=False)]
    (line,) = [p for p in svg.iter("path") if p.get("stroke-dasharray") == "7 4"]
    left, top, right = numbers(line.get("d"))
    assert read(top, up, log=False) == pytest.approx(50, abs=0.2)
    assert 0 < left < right < WIDTH
    (name,) = [t for t in svg.iter("text") if t.text == "dense"]
    assert top - 10 < float(name.get("y")) < top  # just above its line
    assert float(name.get("x")) == right - 4


@pytest.mark.parametrize("log", [False, True])
def test_nothing_leaves_the_picture(log):
    svg = parsed(chart(LINES, x="x", y="y", log_x=log, level=("dense", 91.0)))
    for place in (0, 1):
        for left, top in marks(svg, place):
            assert 70 <= left <= WIDTH - 14 and 14 <= top <= HEIGHT - 52
    for text in svg.iter("text"):
        if text.get("x"):
            assert 0 <= float(text.get("x")) <= WIDTH
            assert 0 <= float(text.get("y")) <= HEIGHT
    assert svg.get("viewBox") == f"0 0 {WIDTH} {HEIGHT}"
    clip = next(s for s in svg.iter("svg") if s.get("x"))
    assert clip.get("viewBox") == " ".join(clip.get(k) for k in ("x", "y", "width", "height"))
    x, y, wide, high = numbers(clip.get("viewBox"))
    # The field between the axes with six units around it, so that marks on its border are whole.
    assert (x, y) == (64, 28) and (x + wide, y + high) == (WIDTH - 8, HEIGHT - 46)


def test_what_lies_below_the_floor_has_a_line_but_no_mark():
    svg = parsed(chart(LINES, x="x", y="y", floor=40.0))
    assert len(marks(svg, 0)) == 2 and len(marks(svg, 1)) == 1
    assert all(45 <= value <= 91 for value, _ in ticks(svg, across=False))


def test_what_lies_below_the_floor_does_not_stretch_the_axis_across():
    dead = ChartLine(name="dead", dots=(dot(20, 60), dot(9e4, 10)))
    svg = parsed(chart([*LINES, dead], x="x", y="y", floor=40.0))
    assert max(value for value, _ in ticks(svg, across=True)) <= 60
    # The line still leads out of the picture, where the dead network lies.
    assert len(marks(svg, 2)) == 1
    assert sum(line.tag.endswith("polyline") for line in svg.iter()) == 3


def test_a_cloud_has_marks_and_no_line():
    cloud = ChartLine(name="cloud", dots=(dot(1, 1), dot(2, 3)), joined=False)
    svg = parsed(chart([cloud], x="x", y="y"))
    drawn = [line for line in svg.iter() if line.tag.endswith("polyline")]
    assert not drawn and len(marks(svg, 0)) == 2


def test_a_hidden_line_does_not_stretch_the_axes():
    far = ChartLine(name="far", dots=(dot(5, 50), dot(9e5, 50)), hidden=True)
    svg = parsed(chart([*LINES, far], x="x", y="y"))
    alone = parsed(chart(LINES, x="x", y="y"))
    assert ticks(svg, across=True) == ticks(alone, across=True)
    assert len(marks(svg, 2)) == 1
    assert all(
        value > 1e5 for value, _ in ticks(parsed(chart([far], x="x", y="y")), across=True)[1:]
    )


def test_a_file_with_a_hidden_line_is_well_formed():
    hidden = ChartLine(name="h", dots=(dot(5, 50), dot(6, 50)), hidden=True)
    ElementTree.fromstring(chart([*LINES, hidden], x="x", y="y").file())


def test_a_long_line_carries_few_marks_and_its_last_value_always():
    dots = tuple(dot(x, x * x, text=f"epoch {x}") for x in range(60))
    lines = [ChartLine(name=name, dots=dots, colour=n) for n, name in enumerate("abc")]
    svg = parsed(chart(lines, x="epoch", y="loss", marks=False))
    assert [len(line.get("points").split()) for line in svg.iter("polyline")] == [60] * 3
    shown = [[path.get("data-t") for path in marked(svg, n)] for n in range(3)]
    assert all(6 <= len(own) <= 13 and own[-1] == "epoch 59" for own in shown)
    # Equal lines lie on each other; their marks do not, but for the last.
    first, second, third = (set(own[:-1]) for own in shown)
    assert not (first & second or second & third or first & third)
    # The legend shows the marks that the lines have.
    for colour in range(3):
        assert all(path.get("d").endswith(SHAPES[colour]) for path in marked(svg, colour))
    large = parsed(chart(lines[:1], x="epoch", y="loss"))
    assert len(marks(large, 0)) == 60


def test_values_that_nothing_joins_are_dots():
    cloud = ChartLine(name="cloud", dots=tuple(dot(x, x) for x in range(1, 60)), joined=False)
    figure = chart([cloud], x="x", y="y", marks=False)
    dots = [path.get("d") for path in marked(parsed(figure), 0)]
    # A line of no length with round ends is a dot, and not a dash.
    assert len(dots) == 59 and all(d.endswith("h.01") for d in dots)
    assert 'd$="h.01"' in STYLE and 'd$="h.01"' in figure.file()


def test_lines_of_one_name_are_told_apart_by_their_dashes():
    lines = [ChartLine(name="a", dots=LINES[0].dots, dashes=n) for n in range(10)]
    drawn = [
        line.get("stroke-dasharray") for line in parsed(chart(lines, x="x", y="y")).iter("polyline")
    ]
    assert drawn[0] is None and len(set(drawn[:8])) == 8 and drawn[8] == drawn[9] == drawn[7]
    shares = [1.0] + [numbers(dashes)[0] / sum(numbers(dashes)) for dashes in drawn[1:8]]
    # At 500 pixels a line shrinks: two close shares would look the same.
    assert all(more > 1.1 * less for more, less in pairwise(shares))
    printed = ChartLine(name="p", dots=LINES[0].dots, printed=True)
    (dots,) = parsed(chart([printed], x="x", y="y")).iter("polyline")
    assert dots.get("stroke-dasharray") not in drawn


def test_the_name_of_the_upward_axis_stands_above_its_numbers():
    svg = parsed(chart(LINES, x="x", y="misalignment of the factors"))
    name = next(text for text in svg.iter("text") if text.text == "misalignment of the factors")
    assert name.get("transform") is None
    # At 19 units to the letter, as on a phone: above the highest number, and not beyond the edge.
    assert float(name.get("y")) + 4 < min(y for _, y in ticks(svg, across=False)) - 4
    assert float(name.get("x")) + 0.6 * 19 * len(name.text) < WIDTH


@pytest.mark.parametrize(("most", "few"), [(100, True), (500, False)])
def test_up_to_five_numbers_beside_an_axis_stay_on_a_phone(most, few):
    line = ChartLine(name="a", dots=(dot(10, 1), dot(most, 2)))
    svg = parsed(chart([line], x="compression", y="accuracy", log_x=True))
    minor = [text for text in svg.iter("text") if text.get("class") == "minor"]
    assert bool(minor) != few
