"""A recipe and a report say whether a layer that is lost matters, before and after pruning."""

import pytest
import torch
from torch import nn

import secateurs as sc


class Skip(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.side, self.last = (
            nn.Linear(3, 4),
            nn.Linear(4, 4),
            nn.Linear(4, 2),
        )

    def forward(self, x):
        x = torch.relu(self.first(x))
        return self.last(x + torch.relu(self.side(x)))


EXAMPLE = torch.zeros(1, 3)


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(
    ("lost", "word"),
    [("side.weight", "does not matter"), ("last.weight", "matters: the output")],
)
def test_check_says_whether_a_lost_layer_matters(lost, word, dry_run):
    recipe = sc.Recipe(score="magnitude", scope={"*": 1.0, lost: 0.0}, floor=0)
    model = Skip()
    plan = recipe.check(model, example=EXAMPLE, dry_run=dry_run)
    verdicts = {p.name: p.verdict for p in plan.parameters}
    assert verdicts.pop(lost).startswith(word)
    assert set(verdicts.values()) == {""}
    assert word in str(plan)
    pruned = sc.prune_(model, recipe, example=EXAMPLE)
    report = sc.sparsity_report(model, example=EXAMPLE)
    for each in (pruned.report, report):
        assert {t.name: t.verdict for t in each.tensors}[lost].startswith(word)


def test_an_unreadable_model_is_counted_all_the_same():
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))
    nn.init.zeros_(model[2].weight)
    report = sc.sparsity_report(model, example=EXAMPLE)
    assert report.collapsed == ("2.weight",)
    assert "is unknown" in report.tensors[1].verdict and "gelu" in report.tensors[1].verdict


def test_without_an_example_nothing_is_said():
    model = nn.Sequential(nn.Linear(3, 4))
    nn.init.zeros_(model[0].weight)
    assert sc.sparsity_report(model).tensors[0].verdict == ""
