"""The page on scores: its table lists what is registered, its examples run."""

import re
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import secateurs as sc
from secateurs.scores import SCORES

PAGE = (Path(__file__).parents[2] / "docs" / "scores.md").read_text()


def test_the_table_lists_every_registered_score():
    assert set(re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.M)) >= set(SCORES.names())


def test_the_examples_run():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    )
    names = {
        "sc": sc,
        "F": F,
        "model": model,
        "images": torch.randn(4, 3, 8, 8),
        "g": torch.Generator(),
    }
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(block, names)
    try:
        assert list(names["scores"]) == ["0.weight", "3.weight"]
        assert torch.equal(
            sc.score(model, "fan", power=2.0)["3.weight"],
            model[3].weight.detach() ** 2 / 144,
        )
    finally:
        SCORES._rules.pop("fan")
