"""Bars: each as long as its number says, none on top of another, nothing outside the picture."""

import itertools
from xml.etree import ElementTree

import pytest

from secateurs.ship.measure import bars

PANELS = [
    ("milliseconds", {"dense": 8.0, "compact": 4.0, "fast": 1.0}),
    ("bytes", {"dense": 0.0, "fast": 0.0}),
]


def parts(kind):
    picture = ElementTree.fromstring(bars(PANELS))
    found = [node for node in picture.iter() if node.tag.endswith(kind)]
    return picture, [node.attrib | {"text": node.text} for node in found]


def test_lengths_are_in_the_ratio_of_the_numbers():
    _, drawn = parts("rect")
    dense, compact, fast, *nothing = [float(each["width"]) for each in drawn]
    # Written with one digit behind the point.
    assert (dense / compact, dense / fast) == pytest.approx((2.0, 8.0), rel=2e-3)
    assert set(nothing) == {1.0}


def test_everything_stands_apart_and_inside():
    picture, drawn = parts("rect")
    width, height = float(picture.get("width")), float(picture.get("height"))
    spans = [(float(r["y"]), float(r["y"]) + float(r["height"])) for r in drawn]
    assert all(a[1] < b[0] for a, b in itertools.pairwise(spans))
    assert all(top > 0 and bottom < height for top, bottom in spans)
    assert all(float(r["x"]) + float(r["width"]) < width - 60 for r in drawn)
    _, texts = parts("text")
    assert all(0 < float(t["y"]) < height and 0 < float(t["x"]) < width for t in texts)
    # A title stands above the first bar of its panel, below the last one of the panel before.
    title = next(float(t["y"]) for t in texts if t["text"] == "bytes")
    assert spans[2][1] < title < spans[3][0]
