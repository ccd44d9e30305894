"""The programs printed in docs/shipping.md run as they stand."""

import pytest

from old_torch import writes_onnx
from pages import DOCS, blocks

PAGE = DOCS / "shipping.md"
PROGRAMS = blocks(PAGE)


def test_there_are_programs():
    assert len(PROGRAMS) >= 2


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(i, marks=writes_onnx if ".onnx" in program else ())
        for i, program in enumerate(PROGRAMS)
    ],
)
def test_the_printed_programs_run(index, capsys):
    exec(compile(PROGRAMS[index], f"{PAGE.name}:{index}", "exec"), {})
    assert capsys.readouterr().out
