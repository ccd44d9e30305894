"""The page on scores: its table lists what is registered, its examples run."""

import re

import torch

import secateurs as sc
from pages import DOCS, run_page
from secateurs.scores import SCORES

PAGE = DOCS / "scores.md"


def test_the_table_lists_every_registered_score():
    listed = re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text(encoding="utf-8"), re.M)
    assert set(listed) >= set(SCORES.names()), "each score has a row in docs/scores.md"


def test_the_examples_run():
    torch.manual_seed(0)
    try:
        names = run_page(PAGE)  # scores.md
        assert list(names["scores"]) == ["0.weight", "3.weight"]
        fan, weight = (
            sc.score(names["model"], "fan", power=2.0)["3.weight"],
            names["model"][3].weight.detach(),
        )
        assert torch.equal(fan, weight**2 / 144)
    finally:
        SCORES._rules.pop("fan")
