"""The programs printed in docs/shipping.md run as they stand."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "shipping.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


def test_there_are_programs():
    assert len(PROGRAMS) >= 2


@pytest.mark.parametrize("index", range(len(PROGRAMS)))
def test_the_printed_programs_run(index, capsys):
    exec(compile(PROGRAMS[index], f"{PAGE.name}:{index}", "exec"), {})
    assert capsys.readouterr().out
