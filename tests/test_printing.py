"""`print(result)` shows the table a user expects, names with brackets included."""

import torch
from torch import nn

import secateurs as sc


def test_reports_print_as_tables():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    recipe = sc.Recipe(score="synflow", sparsity=0.5, rounds=2, schedule="exponential")
    pruned = sc.prune_(model, recipe, example=torch.zeros(1, 4))
    for result in (
        recipe.check(model, example=torch.zeros(1, 4)),
        pruned,
        sc.sparsity(model),
    ):
        text = str(result)
        assert "0.weight" in text and "2.weight" in text and "24" in text
        assert "\x1b" not in text


def test_problems_keep_their_brackets():
    plan = sc.Recipe(score="magnitude", sparsity=0.5, where=["[bold]x"]).check(nn.Linear(2, 2))
    assert "'[bold]x'" in str(plan)
