"""`print(result)` shows the table a user expects, names with brackets included."""

import json
from dataclasses import dataclass

import torch
from torch import nn

import secateurs as sc
from secateurs.base.printing import AsJson


def test_reports_print_as_tables():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    recipe = sc.Recipe(score="synflow", sparsity=0.5, rounds=2, schedule="exponential")
    pruned = sc.prune_(model, recipe, example=torch.zeros(1, 4))
    for result in (
        recipe.check(model, example=torch.zeros(1, 4)),
        pruned,
        sc.sparsity_report(model),
    ):
        text = str(result)
        assert "0.weight" in text and "2.weight" in text and "24" in text
        assert "\x1b" not in text


def test_a_text_shows_nothing_of_its_own_in_a_notebook(monkeypatch):
    shown = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *given: shown.append(given))
    assert "weight" in str(sc.sparsity_report(nn.Linear(2, 2))) and not shown


def test_problems_keep_their_brackets():
    plan = sc.Recipe(score="magnitude", sparsity=0.5, where=["[bold]x"]).check(nn.Linear(2, 2))
    assert "'[bold]x'" in str(plan)


@dataclass(frozen=True, slots=True)
class Bound(AsJson):
    value: float
    parts: tuple[float, ...]


def test_what_json_cannot_hold_is_null():
    bound = Bound(float("inf"), (1.0, float("nan")))
    assert bound.as_dict() == {"value": None, "parts": [1.0, None]}
    assert json.loads(bound.to_json()) == bound.as_dict()


def test_every_result_with_plain_values_is_json():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    nothing = {"a": torch.zeros(2)}
    for result in (
        sc.sparsity_report(nothing),
        sc.liveness(model, torch.zeros(1, 4)),
        sc.macs(model, torch.zeros(1, 4)),
        sc.prune_(model, "magnitude", sparsity=0.5),
    ):
        assert json.loads(result.to_json()) == json.loads(json.dumps(result.as_dict()))
