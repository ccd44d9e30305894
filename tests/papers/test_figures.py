"""The figures of the papers: drawn from the committed rows, and from rows that lack something."""

import csv
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from unittest import mock

import pytest

from experiments.__main__ import main
from experiments.catalogue import EXPERIMENTS
from experiments.figures import FIGURES, figures_of, line, links, over_seeds, write_figures

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
DRAWN = sorted(FIGURES.names())
COMMITTED = [name for name in DRAWN if (RESULTS / f"{name}.csv").exists()]


def command(*arguments):
    """The exit code of `python -m experiments path-pruning`, drawing only."""
    fixed = ["experiments", "path-pruning", "--scale", "cpu", "--redraw"]
    with mock.patch.object(sys, "argv", [*fixed, *map(str, arguments)]):
        try:
            main()
        except SystemExit as left:
            return left.code or 0
    return 0


def rows_of(name):
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_experiment_that_print_has_figures_of_is_drawn():
    tables_only = {"probabilistic-norms"}
    assert {*DRAWN} == {*EXPERIMENTS.names()} - tables_only


@pytest.mark.parametrize("name", COMMITTED)
def test_the_committed_rows_are_drawn(name, tmp_path):
    panels = figures_of(name, rows_of(name))
    assert panels and len({panel.name for panel in panels}) == len(panels)
    for panel in panels:
        assert panel.table.cells and panel.head.strip()
    for path in write_figures(tmp_path, name, panels):
        root = ElementTree.parse(path).getroot()
        assert root.tag.endswith("svg") and "nan" not in path.read_text()


@pytest.mark.parametrize("name", COMMITTED)
def test_the_committed_figures_are_those_of_the_rows(name):
    """A figure that lies in the repository is the one that its rows give today."""
    for panel in figures_of(name, rows_of(name)):
        path = RESULTS / "figures" / f"{name}-{panel.name}.svg"
        if path.exists():
            assert path.read_text() == panel.drawing.file(), (
                f"draw again: python -m experiments {name} --scale cpu --redraw"
                f" --out benchmarks/results/{name}.csv --figures benchmarks/results/figures"
            )


@pytest.mark.parametrize("name", COMMITTED)
def test_a_run_that_has_only_begun_is_drawn_too(name):
    """The rows of the first job alone: no figure needs what comes later."""
    rows = rows_of(name)
    first = [row for row in rows if row["job"] == rows[0]["job"]]
    assert all(panel.drawing is not None for panel in figures_of(name, first))
    assert figures_of(name, []) == []


def test_seeds_become_one_mark_and_what_diverged_none():
    groups = [[(10.0, 80.0), (12.0, 90.0), (11.0, 82.0)], [(float("nan"),) * 2]]
    (dot,) = over_seeds("a", groups).dots
    assert (dot.x, dot.y, dot.low, dot.high) == (11.0, 82.0, 80.0, 90.0)
    assert dot.text == "a: 82 at 11 (median of 3 seeds)"
    assert [d.x for d in line("a", [(2, 1), (1, 1), (3, float("inf"))]).dots] == [
        1,
        2,
    ]


def test_figure_1_shows_how_far_its_seeds_lie_apart():
    rows = [
        {
            "penalty": "l1",
            "strength": "1e-3",
            "seed": seed,
            "cut": cut,
            "compression": c,
            "accuracy": a,
        }
        for seed, shift in (("0", 0), ("1", 2), ("2", 6))
        for cut, c, a in (("0", "5", f"{88 + shift}"), ("100", "100", f"{80 + shift}"))
    ]
    trained, cut = figures_of("weight-factorization-l1", rows)
    for panel, x, middle in ((trained, 5, 90), (cut, 100, 82)):
        (name, *numbers) = panel.table.cells[-1]
        assert name == "plain L1"
        assert [float(n) for n in numbers] == [x, middle, middle - 2, middle + 4]
    # Cut, the marks lie at the compressions that every net is cut to.
    assert [float(row[1]) for row in cut.table.cells] == [10, 20, 35, 50, 75, 100]


def test_the_command_draws_what_is_there_and_runs_nothing(tmp_path):
    out, figures, page = (tmp_path / n for n in ("rows.csv", "figures", "page.md"))
    out.write_bytes((RESULTS / "path-pruning.csv").read_bytes())
    before = out.read_bytes()
    assert command("--out", out, "--figures", figures, "--page", page) == 0
    assert out.read_bytes() == before
    drawn = {path.name for path in figures.iterdir()}
    assert "path-pruning-resnet-8-width-8-fashion-mnist-12ep-scatter.svg" in drawn
    text = page.read_text()
    assert all(f"(figures/{name})" in text for name in drawn)


def test_a_page_without_a_folder_for_figures_has_the_numbers_alone(tmp_path):
    page = tmp_path / "page.md"
    assert command("--out", RESULTS / "path-pruning.csv", "--page", page) == 0
    text = page.read_text()
    assert "overlap, path-global 80 %" in text and "](" not in text


def test_the_page_as_html_has_the_figures_and_every_number(tmp_path):
    page = tmp_path / "page.html"
    assert command("--out", RESULTS / "path-pruning.csv", "--page", page) == 0
    text = page.read_text()
    assert "Content-Security-Policy" in text and text.count('<svg class="chart') >= 8
    assert "overlap, path-global 80 %" in text


def test_the_file_of_another_experiment_is_refused_and_left_alone(tmp_path, capsys):
    out = tmp_path / "rows.csv"
    out.write_bytes((RESULTS / "weight-factorization-rate.csv").read_bytes())
    before = out.read_bytes()
    assert command("--out", out) == 2
    said = capsys.readouterr().err
    assert "no column 'kind'" in said and "does not belong to the experiment" in said
    assert out.read_bytes() == before


def test_nothing_to_redraw_is_said(tmp_path, capsys):
    for more in ([], ["--out", tmp_path / "none.csv"]):
        assert command(*more) == 2
        assert "--redraw" in capsys.readouterr().err


def test_links_lead_from_the_page_to_the_figures(tmp_path):
    rows = rows_of("weight-factorization-posthoc")
    panels = figures_of("weight-factorization-posthoc", rows)
    files = write_figures(tmp_path / "figures", "posthoc", panels)
    text = links(tmp_path / "page.md", files, panels)
    assert text.count("](figures/posthoc-rate-") == len(panels)
    text = links(tmp_path / "pages" / "page.md", files, panels)
    assert text.count("](../figures/posthoc-rate-") == len(panels)
    assert links(tmp_path / "page.md", [], []) == ""
