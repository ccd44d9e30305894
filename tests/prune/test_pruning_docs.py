"""The snippets of docs/pruning.md run as they are, one after another."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "pruning.md"


def test_the_page_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) >= 6
    names: dict[str, object] = {}
    for number, block in enumerate(blocks, start=1):
        try:
            exec(compile(block, f"{PAGE.name}, block {number}", "exec"), names)
        except Exception as error:
            pytest.fail(f"block {number} of {PAGE.name}: {error}")
    said = capsys.readouterr().out
    assert said.startswith("0.5 ()\n")


def test_the_page_names_every_field_and_schedule():
    from dataclasses import fields

    from secateurs.prune import SCHEDULES, Recipe

    page = PAGE.read_text()
    assert not [entry.name for entry in fields(Recipe) if f"`{entry.name}`" not in page]
    assert not [name for name in SCHEDULES.names() if f"`{name}`" not in page]
