"""The page of a study: it says what the rows say, and runs nothing that they hold."""

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from lab.study.example import example_store
from secateurs_lab.report import page, parts, write_page
from secateurs_lab.report.figures import chart
from secateurs_lab.report.page import SCRIPT, STYLE, methods_paragraph
from secateurs_lab.report.series import Axis, dynamics, frontier, within


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    with example_store(tmp_path_factory.mktemp("report") / "a.study") as store:
        return store.rows()


class Elements(HTMLParser):
    """Every element with its attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_the_page_of_a_store(tmp_path):
    example_store(tmp_path / "b.study").close()
    text = write_page(tmp_path / "b.study", tmp_path / "out.html").read_text()
    assert text.startswith("<!doctype html>") and len(text) < 6_000_000
    assert [p.name for p in tmp_path.glob(".out*")] == []


def test_nothing_that_a_row_says_is_run_or_asked_for(rows):
    """No element comes from a row, no address leads outside, no handler stands in an attribute."""
    evil = '<img src=x onerror="alert(1)">'
    named = [replace(row, label=evil, reason=evil) for row in rows]
    elements = Elements(page(named, name=evil)).found
    assert not [tag for tag, _ in elements if tag in ("img", "iframe", "object", "link", "base")]
    assert not [key for _, attrs in elements for key in attrs if key.startswith("on")]
    links = [attrs[key] for _, attrs in elements for key in ("href", "src") if key in attrs]
    assert links and all(link.startswith("data:") for link in links)
    assert [tag for tag, _ in elements].count("script") == 1


def test_the_policy_allows_exactly_what_is_there(rows):
    text = page(rows, name="a")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text).group(1)
    for part in (SCRIPT, STYLE):
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy and part in text
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    # An inline style would be refused by the policy, and so look broken.
    assert not [attrs for _, attrs in Elements(text).found if "style" in attrs]


def test_every_method_and_every_run_is_there(rows):
    text = page(rows, name="a")
    shown = [r for r in rows if r.state in ("done", "collapsed") and r.accuracy is not None]
    assert {line.name for line in frontier(rows)} == {row.label for row in shown}
    assert all(row.key[:8] in text for row in rows)
    heads = re.findall(r"<h2>([^<]*)</h2>", text)
    assert heads == [
        *(
            "Accuracy against compression",
            "Largest compression",
            "Training over time",
        ),
        *("Remaining weights, layer by layer", "Magnitudes of the remaining weights"),
        *("Certificates", "Cost and time", "Runs", "Methods"),
    ]


def test_every_setting_that_acts_is_said_in_the_methods(rows):
    said = " ".join(text for _, text in methods_paragraph(rows))
    for row in rows:
        table = row.settings["method"]
        acting = [name for name in table if table[name] not in ({}, [], None, False, "")]
        assert all(name in said for name in acting)
        assert all(name in said for name in ("length", "batch", "optimizer", "schedule", "lr"))


def test_two_networks_stand_under_their_own_heads(rows):
    other = [replace(row, model="lenet-5") for row in rows]
    found = parts([*rows, *other])
    assert [head for head, _ in found] == [
        "lenet-300-100 on digits",
        "lenet-5 on digits",
    ]
    for _, panels in found:
        (cost,) = (panel.table for panel in panels if panel.name == "cost")
        assert sum(int(cells[1]) for cells in cost.cells) == len(rows)


def test_a_line_holds_medians_and_extremes(rows):
    alike = [
        replace(rows[0], seed=seed, state="done", accuracy=accuracy, compression=10.0)
        for seed, accuracy in enumerate((0.7, 0.9, 0.8))
    ]
    (line,) = frontier(alike)
    (dot,) = line.dots
    assert (dot.x, dot.y, dot.low, dot.high) == pytest.approx((10.0, 80.0, 70.0, 90.0))
    assert within(line, 84.0, 5.0) == 10.0
    assert within(line, 86.0, 5.0) is None


def test_seeds_that_were_lost_are_told_beside_the_median_of_the_others(rows):
    first = replace(rows[-1], state="done", accuracy=0.9, compression=10.0)
    lost = replace(first, seed=7, state="diverged", accuracy=None, compression=None)
    (line,) = frontier([first, lost])
    assert line.dots[0].text.endswith("; 1 of 2 seeds have no result")
    assert "Not drawn: 1 diverged (see Runs)." in page([first, lost], name="a")
    (alone,) = frontier([first])
    assert "no result" not in alone.dots[0].text
    assert "Not drawn" not in page([first], name="a")


@pytest.mark.parametrize("values", [(3.0,), (0.0, 0.0), (1e-8, 1e8), (-5.0, 5.0)])
@pytest.mark.parametrize("log", [False, True])
def test_axes_hold_their_values(values, log):
    low, high = (max(v, 1e-9) if log else v for v in (min(values), max(values)))
    axis = Axis(low=low, high=high * 2 + 1, label="x", log=log)
    assert axis.ticks()
    assert all(-1e-9 <= axis.share(tick.value) <= 1 + 1e-9 for tick in axis.ticks())


@pytest.mark.parametrize(
    ("low", "high", "log", "texts"),
    [
        (1, 130, True, ["1", "2", "5", "10", "20", "50", "100"]),
        (4, 7, True, ["4.0", "4.5", "5.0", "5.5", "6.0", "6.5", "7.0"]),
        (1e-8, 10, True, ["10⁻⁸", "10⁻⁶", "10⁻⁴", "0.01", "1"]),
        (0, 0.002, False, ["0.0000", "0.0005", "0.0010", "0.0015", "0.0020"]),
        (88.2, 97.9, False, ["90", "92", "94", "96"]),
    ],
)
def test_ticks_are_round_numbers_with_few_figures(low, high, log, texts):
    axis = Axis(low=low, high=high, label="x", log=log)
    assert [tick.text for tick in axis.ticks()] == texts


def test_trainings_of_one_method_are_broken_by_their_compression(rows):
    one = next(row for row in rows if len(row.history) > 1 and row.asked)
    runs = [replace(one, asked=asked, strength=None) for asked in (50.0, 5.0, 20.0)]
    assert [line.dashes for line in dynamics(runs, lambda point: point.loss)] == [2, 0, 1]


def test_a_study_without_an_end_yet_has_a_page_too(rows):
    waiting = [replace(row, state="waiting", accuracy=None, compression=None) for row in rows]
    assert "Nothing to show yet" in page(waiting, name="a")
    assert "Nothing to show yet" in page([], name="a")
    assert chart([], x="x", y="y") is None


def test_the_paragraph_of_a_method_tells_its_own_settings(tmp_path):
    with example_store(tmp_path / "s", seeds=1) as held:
        row = next(row for row in held.rows() if row.settings)
    shared = {"model": "lenet-5", "epochs": 3}
    rows = [
        replace(row, label="one", settings=shared | {"score": "snip"}),
        replace(row, label="one", settings=shared | {"score": "snip", "rounds": 7}),
        replace(row, label="two", settings=shared | {"score": "magnitude"}),
    ]
    said = dict(methods_paragraph(rows))
    assert "snip" in said["one"] and "7" in said["one"]
    assert "magnitude" in said["two"] and "snip" not in said["two"]
    assert "magnitude" not in said["one"] and "lenet-5" in said["All runs share"]


def test_the_main_figure_alone_is_as_wide_as_the_page(rows):
    text = page(rows, name="a")
    assert text.count('<figure class="wide">') == 1
    assert text.index('<figure class="wide">') == text.index("<figure")
    assert ".panels > .wide { grid-column: 1 / -1; }" in text
