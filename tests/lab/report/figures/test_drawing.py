"""The legend of a figure that stands alone: every name in its place, nothing on top of another."""

import itertools
import re
from xml.etree import ElementTree

import pytest

from secateurs_lab.report.figures import LIGHT, SHAPES, Drawing, Key, mark

SPACE = "{http://www.w3.org/2000/svg}"


def drawing(names, width=560):
    keys = tuple(Key(name=name, colour=n) for n, name in enumerate(names))
    return Drawing(body="", width=width, height=360, label="a figure", keys=keys)


def entries(names, width=560):
    svg = ElementTree.fromstring(drawing(names, width).file())
    height = float(svg.get("viewBox").split()[-1])
    found = [(t.text, float(t.get("x")), float(t.get("y"))) for t in svg.iter(f"{SPACE}text")]
    return found, height


@pytest.mark.parametrize("count", [1, 3, 9, 20])
def test_entries_fill_lines_without_meeting(count):
    names = [f"method number {n}" for n in range(count)]
    found, height = entries(names)
    assert [name for name, _, _ in found] == names
    for (name, x, y), (_, right, below) in itertools.pairwise(found):
        if below == y:
            assert right >= x + 7.1 * len(name) + 13  # its letters, then the next swatch
        else:
            # A new line begins only where the entry had no room left, and stands 20 lower.
            assert below == y + 20 and right == found[0][1]
            assert x + 7.1 * len(name) + 32 + 7.1 * len(name) > 560 - 46
    for name, x, y in found:
        assert x + 7.1 * len(name) <= 560 and 360 < y < height - 4
    assert height - found[-1][2] < 20


def test_a_name_wider_than_the_figure_stands_alone():
    found, _ = entries(["short", "x" * 100, "short again"])
    assert len({y for _, _, y in found}) == 3 and len({x for _, x, _ in found}) == 1


def test_a_figure_without_names_has_no_room_for_them():
    assert entries([])[1] == 360


def test_marks_of_56_methods_differ():
    looks = {(n % len(LIGHT), mark(n, 0, 0)) for n in range(56)}
    assert len(looks) == 56 == len(LIGHT) * len(SHAPES)
    assert mark(57, 3.14159, 2.0).startswith("M3.1 2.0" + SHAPES[1])


def test_a_swatch_has_its_mark_in_the_middle_of_its_line():
    svg = ElementTree.fromstring(drawing(["a"]).file())
    line, shape = (p.get("d") for p in svg.iter(f"{SPACE}path"))
    left, top, wide = map(float, re.fullmatch(r"M(\S+) (\S+)h(\S+)", line).groups())
    assert shape.startswith(f"M{left + wide / 2:.1f} {top:.1f}")
    text = next(svg.iter(f"{SPACE}text"))
    assert left + wide < float(text.get("x")) <= left + wide + 10
    assert float(text.get("y")) == top + 4
