"""The page about masks says what happens."""

import doctest
from pathlib import Path


def test_examples_of_the_page_run():
    page = Path(__file__).parents[2] / "docs" / "masks.md"
    result = doctest.testfile(
        str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert result.attempted > 10 and result.failed == 0
