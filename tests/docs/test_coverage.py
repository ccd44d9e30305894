"""docs/coverage.md and the code: names exist, and every numbered statement has a row."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
SPECS = ROOT.parent / "shared" / "spec"

PAPERS = {
    "paths.md": "Path-metrics, pruning, and generalization",
    "probabilistic.md": "A Probabilistic Approach to Neural Network Pruning",
    "sketching.md": "Pruning at Initialization",
    "factorization.md": "Deep weight factorization",
}


def numbered(kind, *numbers):
    return [f"{kind} {number}" for number in numbers]


# Counted in the papers themselves, appendices included. Equations where they are methods of
# their own and not a line of a statement.
STATEMENTS = {
    "paths.md": [
        *numbered(
            "Definition",
            "A.1",
            "A.2",
            "A.3",
            "A.4",
            "A.5",
            "C.1",
            "G.1",
            "G.2",
            "G.3",
            "G.4",
        ),
        *numbered("Theorem", "3.1", "5.1", "B.1", "C.1", "E.1", "G.1", "G.2", "H.1"),
        *numbered("Lemma", "C.1", "C.2", "E.1", "G.1", "G.2", "G.3"),
        *numbered("Corollary", "C.1", "C.2", "F.1", "G.1"),
        *numbered("Example", "G.1", "G.2", "G.3"),
        *numbered("Algorithm", 1),
        *numbered("Table", 1, 2, 3),
        *numbered("Figure", *range(1, 7)),
    ],
    "probabilistic.md": [
        *numbered("Definition", 1),
        *numbered("Lemma", *range(1, 8)),
        *numbered("Theorem", *range(1, 5)),
        *numbered("Appendix", "C.1", "C.2", "D.1", "D.2", "D.3", "D.4", "E.1", "E.2", "E.3"),
        *numbered("Table", 1, 2, 3),
        *numbered("Figure", 1, 2),
    ],
    "sketching.md": [
        *numbered("Algorithm", 1),
        *numbered("Equation", "(1)", "(2)"),
        *numbered("Lemma", "4.1", "4.2", "4.3", "4.5", "B.1", "B.2"),
        *numbered("Theorem", "4.4", "7.2"),
        *numbered("Definition", "7.1"),
        *numbered("Table", 1, 2, 3, 4),
        *numbered("Figure", "1a", "1b", 2),
    ],
    "factorization.md": [
        *numbered("Definition", *range(1, 5)),
        *numbered("Lemma", *range(1, 6)),
        *numbered("Theorem", 1),
        *numbered("Algorithm", 1, 2),
        *numbered("Equation", "(1)", "(2)", "(6)", "(7)"),
        *numbered("Table", *range(1, 5)),
        *numbered("Figure", *range(1, 28)),
    ],
}

NAMES = sorted(set(re.findall(r"`(secateurs(?:\.\w+)+)`", PAGE)))


def section(spec):
    """The rows of one paper: first cells, and the whole text."""
    start = PAGE.index(f"## {PAPERS[spec]}")
    text = PAGE[start:].split("\n## ")[0] if start == 0 else PAGE[start + 3 :].split("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def has_row(spec, statement):
    pattern = re.compile(rf"\b{re.escape(statement)}(?![\w.]*\w)")
    return any(pattern.search(row[0]) for row in section(spec))


@pytest.mark.parametrize("name", NAMES)
def test_every_name_exists(name):
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return
    pytest.fail(f"{name} does not exist")


@pytest.mark.parametrize("spec", PAPERS)
def test_every_statement_of_the_papers_has_a_row(spec):
    missing = [s for s in STATEMENTS[spec] if not has_row(spec, s)]
    assert missing == []


@pytest.mark.parametrize("spec", PAPERS)
def test_every_row_says_where_and_how(spec):
    for row in section(spec):
        assert len(row) == 3 and all(row), row
        assert "`" in row[1] or row[1] == "—", row
        assert row[1] != "—" or len(row[2]) > 8, row


@pytest.mark.parametrize("spec", PAPERS)
def test_every_number_of_the_specifications_has_a_row(spec):
    """Only where the specifications lie beside the repository."""
    path = SPECS / spec
    if not path.exists():
        pytest.skip("the specifications are not part of the repository")
    text = path.read_text(encoding="utf-8")
    kinds = "Theorem|Lemma|Corollary|Definition|Algorithm"
    found = set(re.findall(rf"\b({kinds}) ([A-Z]?\.?\d+(?:\.\d+)?)\b", text))
    assert found
    assert [f"{kind} {n}" for kind, n in sorted(found) if not has_row(spec, f"{kind} {n}")] == []


SHORT = {
    "Path metrics": "paths.md",
    "Probabilistic": "probabilistic.md",
    "Sketching": "sketching.md",
    "Factorization": "factorization.md",
}
DRAWINGS = {
    ("paths.md", "Figure 1"),
    ("factorization.md", "Figure 2"),
    ("factorization.md", "Figure 3"),
}


def measured(text):
    """The tables and figures that the rows of a table name."""
    found = []
    for paper, cell in re.findall(r"^\| (\w[^|]*): ([^|]*) \|", text, flags=re.MULTILINE):
        for kind, numbers in re.findall(r"(Table|Figure)s? ((?:\d+[ab]?(?:, )?)+)", cell):
            found += [(SHORT[paper], f"{kind} {n}") for n in re.findall(r"\d+[ab]?", numbers)]
    return found


def test_every_table_and_figure_is_measured_in_one_way():
    text = PAGE.split("## How the tables and figures were measured")[1]
    alike, smaller = map(measured, text.split("**Smaller, on other networks or data**"))
    assert f"{len(alike)} as in the" in text and f"{len(smaller)} smaller" in text
    found = alike + smaller
    kinds = ("Table", "Figure")
    every = {(spec, s) for spec, own in STATEMENTS.items() for s in own if s.startswith(kinds)}
    assert len(every) == 52 and len(found) == len(set(found))
    assert set(found) == every - DRAWINGS
