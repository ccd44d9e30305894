"""The code of docs/paths.md runs as it stands, and its pictures are what the script draws."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_code_runs():
    blocks = re.findall(
        r"```python\n(.*?)```",
        (DOCS / "paths.md").read_text(encoding="utf-8"),
        flags=re.S,
    )
    assert len(blocks) >= 3
    known: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/paths.md", "exec"), known)


def test_the_pictures_are_there_and_well_formed():
    from xml.etree import ElementTree

    names = re.findall(
        r"\((pictures/.*?\.svg)\)", (DOCS / "paths.md").read_text(encoding="utf-8")
    )
    assert len(names) == 4
    for name in names:
        assert ElementTree.parse(DOCS / name).getroot().tag.endswith("svg")
