"""The programs printed in docs/shipping.md run as they stand."""

import pytest

from pages import DOCS, blocks

PAGE = DOCS / "shipping.md"
PROGRAMS = blocks(PAGE)


def test_there_are_programs():
    assert len(PROGRAMS) >= 2


@pytest.mark.parametrize("index", range(len(PROGRAMS)))
def test_the_printed_programs_run(index, capsys):
    exec(compile(PROGRAMS[index], f"{PAGE.name}:{index}", "exec"), {})
    assert capsys.readouterr().out
