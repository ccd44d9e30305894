"""The page about masks says what happens."""

from pages import DOCS, blocks, run_page

PAGE = DOCS / "masks.md"


def test_examples_of_the_page_run():
    assert sum(block.count(">>>") for block in blocks(PAGE)) > 10
    run_page(PAGE)
