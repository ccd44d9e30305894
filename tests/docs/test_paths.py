"""The code of both pages runs as it stands, and its pictures are what the script draws."""

import re

import pytest

from pages import DOCS, blocks, run_page


@pytest.mark.parametrize("page", ["paths.md", "certificates.md"])
def test_the_code_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # one page writes a file
    assert len(blocks(DOCS / page)) >= 3
    known = run_page(DOCS / page)
    if "cert" in known:  # what a comment says is printed
        text = (DOCS / page).read_text(encoding="utf-8")
        assert known["cert"].verdict in text or page == "paths.md"


def test_the_pictures_are_there_and_well_formed():
    from xml.etree import ElementTree

    names = re.findall(r"\((pictures/.*?\.svg)\)", (DOCS / "paths.md").read_text(encoding="utf-8"))
    assert len(names) == 4
    for name in names:
        assert ElementTree.parse(DOCS / name).getroot().tag.endswith("svg")
