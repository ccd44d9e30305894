"""The snippets of docs/pruning.md run as they are, one after another."""

from dataclasses import fields

from pages import DOCS, blocks, run_page
from secateurs.prune import SCHEDULES, Recipe

PAGE = DOCS / "pruning.md"


def test_the_page_runs(capsys):
    assert len(blocks(PAGE)) >= 6
    run_page(PAGE)
    assert capsys.readouterr().out.startswith("0.5 ()\n")


def test_the_page_names_every_field_and_schedule():
    page = PAGE.read_text(encoding="utf-8")
    assert not [entry.name for entry in fields(Recipe) if f"`{entry.name}`" not in page]
    assert not [name for name in SCHEDULES.names() if f"`{name}`" not in page]
