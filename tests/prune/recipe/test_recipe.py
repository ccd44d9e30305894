import dataclasses
import io
import json

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn

from secateurs.errors import (
    ArgumentError,
    EmptySelectionError,
    ParameterError,
    PatternError,
    UnknownNameError,
)
from secateurs.masks import NM
from secateurs.prune import Recipe


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(16, 8)

    def forward(self, x):
        return self.fc(torch.relu(self.norm(self.conv(x))).flatten(1))


X = torch.zeros(3, 2, 4, 4)
Y = torch.tensor([0, 1, 2])


def text(renderable):
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"score": "synflw", "sparsity": 0.5},
            "there is no score 'synflw'. Did you mean 'synflow'",
        ),
        (
            {"scope": "globl", "sparsity": 0.5},
            "there is no scope 'globl'. Did you mean 'global'",
        ),
        ({"scope": ["global"], "sparsity": 0.5}, "there is no scope"),
        (
            {"pattern": "unstructred", "sparsity": 0.5},
            "there is no pattern 'unstructred'. Did you mean 'unstructured'",
        ),
        (
            {"how": "topp", "sparsity": 0.5},
            "there is no selection 'topp'. Did you mean 'topk'",
        ),
        (
            {"schedule": "exponental", "sparsity": 0.5},
            "there is no schedule 'exponental'. Did you mean 'exponential'",
        ),
        (
            {"sparsity": 0.5, "compression": 2},
            "give one of sparsity, density and compression, not",
        ),
        ({"sparsity": 90}, "sparsity=90 is not between 0 and 1"),
        ({"compression": 0.5}, "compression=0.5 is below 1"),
        ({}, "how much to keep is missing"),
        (
            {"scope": {"fc.weight": 0.5}, "sparsity": 0.5},
            "scope= already gives a density per parameter",
        ),
        ({"scope": {"fc.weight": 5}}, "density=5 is not between 0 and 1"),
        ({"scope": {"fc.weight": None}}, "scope= gives no density for 'fc.weight'"),
        ({"sparsity": 0.5, "rounds": 0}, "rounds=0 is not a whole number of at least 1"),
        ({"sparsity": 0.5, "rounds": True}, "rounds=True is not a whole number"),
        (
            {"sparsity": 0.5, "rounds": 3, "schedule": "one-shot"},
            "cuts everything in the first of 3 rounds",
        ),
        ({"sparsity": 0.5, "floor": -1}, "floor=-1 is neither a number of entries"),
        ({"sparsity": 0.5, "floor": float("nan")}, "floor=nan is neither"),
        ({"sparsity": 0.5, "floor": float("inf")}, "floor=inf is neither"),
        (
            {"sparsity": 0.5, "convention": "papr"},
            "convention='papr'; it is 'paper' or 'reference'",
        ),
        ({"sparsity": 0.5, "options": 3}, "options=3 is not a mapping"),
        ({"pattern": "3:2"}, "3:2 is not an N:M pattern"),
        (
            {"sparsty": 0.5},
            "there is no field of a recipe 'sparsty'. Did you mean 'sparsity'",
        ),
        ({"loader": []}, "give them beside it, as batch= or example="),
    ],
)
def test_what_cannot_be_read_is_refused_when_the_recipe_is_made(fields, message):
    with pytest.raises(ArgumentError, match="this recipe cannot be read") as caught:
        Recipe(**fields)
    assert message in str(caught.value)


def test_all_problems_in_one_error_and_of_their_own_kind():
    with pytest.raises(ArgumentError) as caught:
        Recipe(score="synflw", sparsity=2, rounds=-1, scope="x", pattern="y", how="z")
    assert "6 problems: (1)" in str(caught.value) and "(6)" in str(caught.value)
    with pytest.raises(UnknownNameError, match=r"2 problems: .*'scor'.*'sparsty'"):
        Recipe(scor="magnitude", sparsty=0.5)
    with pytest.raises(ArgumentError, match=r"written with names: Recipe\(score='synflow', ...\)"):
        Recipe("synflow", sparsity=0.5)


def test_a_recipe_is_a_value():
    recipe = Recipe(score="synflow", sparsity=0.98, rounds=100)
    assert recipe == Recipe(score="synflow", sparsity=0.98, rounds=100)
    assert dataclasses.replace(recipe, sparsity=0.5).sparsity == 0.5
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.sparsity = 0.5
    assert recipe.as_dict() == {"score": "synflow", "sparsity": 0.98, "rounds": 100}
    full = Recipe(
        score=F.relu,
        where=[nn.Linear, "!fc*"],
        pattern=NM(1, 4),
        options={"a": (1, 2)},
    )
    assert full.as_dict() == {
        "score": "relu",
        "where": ["Linear", "!fc*"],
        "pattern": "1:4",
        "options": {"a": [1, 2]},
    }
    json.dumps(full.as_dict())


def test_check_says_what_is_pruned_skipped_and_how_much():
    plan = Recipe(sparsity=0.9, rounds=3, schedule="linear").check(Net())
    assert plan.ok and plan.total == 72 + 128 and plan.kept == 20
    assert plan.rounds == (140, 80, 20)
    assert [(p.name, p.shape, p.total, p.kept) for p in plan.parameters] == [
        ("conv.weight", (4, 2, 3, 3), 72, None),
        ("fc.weight", (8, 16), 128, None),
    ]
    assert plan.skipped["norm.weight"] == "belongs to BatchNorm2d"
    assert plan.skipped["fc.bias"] == "fewer than two dimensions"
    shown = text(plan)
    for part in (
        "conv.weight",
        "4×2×3×3",
        "by score",
        "to prune in 3 rounds",
        "skipped norm.weight",
        "200",
    ):
        assert part in shown
    row = {"shape": [8, 16], "total": 128, "kept": None}
    assert json.loads(plan.to_json())["parameters"]["fc.weight"] == row


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"sparsity": 0.9, "scope": "layer"}, [7, 13]),
        ({"sparsity": 0.9, "scope": "uniform"}, [7, 13]),
        ({"scope": {"*": 0.5, "fc.weight": 0.25}}, [36, 32]),
        ({"sparsity": 0.5, "scope": "layer", "pattern": "filter"}, [36, 64]),
        ({"pattern": "2:4", "scope": {"*": 0.5}, "where": "fc.weight"}, [64]),
    ],
)
def test_counts_that_no_score_decides_are_known_beforehand(fields, kept):
    plan = Recipe(**fields).check(Net())
    assert plan.ok, plan.problems
    assert [p.kept for p in plan.parameters] == kept
    masks = Recipe(**fields).check(Net(), dry_run=True)
    assert [p.kept for p in masks.parameters] == kept


def test_dry_run_counts_exactly_and_changes_nothing(generator):
    model = Net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    recipe = Recipe(score="snip", sparsity=0.8, how="sample", rounds=2)
    state = generator.get_state()
    plan = recipe.check(
        model,
        batch=(torch.randn_like(X), Y),
        loss=F.cross_entropy,
        dry_run=True,
        generator=generator,
    )
    assert plan.dry_run and sum(p.kept for p in plan.parameters) == plan.kept == 40
    assert torch.equal(generator.get_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    torch.manual_seed(5)
    state = torch.get_rng_state()
    assert Recipe(score="random", sparsity=0.8, how="sample").check(model, dry_run=True).ok
    assert torch.equal(torch.get_rng_state(), state)


def test_check_lists_every_problem_at_once():
    model = nn.ModuleDict(
        {"lazy": nn.LazyLinear(3), "odd": nn.Linear(3, 3), "fine": nn.Linear(4, 4)}
    )
    recipe = Recipe(score="snip", pattern="2:4", options={"modee": "eval"})
    plan = recipe.check(model)
    told = " | ".join(map(str, plan.problems))
    assert not plan.ok and plan.kept is None and plan.rounds == ()
    for part in (
        "'lazy.weight' is lazy",
        "no option of score 'snip' 'modee'. Did you mean 'mode'",
        "'odd.weight' (3, 3) has 3 inputs, which 4 does not divide",
    ):
        assert part in told
    assert "cannot be pruned" in text(plan) and "problem:" in text(plan)
    assert json.loads(plan.to_json())["ok"] is False
    with pytest.raises(ArgumentError, match="the recipe does not fit the model, 3 problems"):
        plan.enforce()


@pytest.mark.parametrize(
    ("recipe", "error", "message"),
    [
        (
            Recipe(score="snip", sparsity=0.5),
            ArgumentError,
            "score 'snip' needs batch=",
        ),
        (
            Recipe(sparsity=0.5, where="fcc.weight"),
            ParameterError,
            "no parameter 'fcc.weight'",
        ),
        (
            Recipe(sparsity=0.5, where=nn.RNN),
            EmptySelectionError,
            "no parameter of Net is chosen",
        ),
        (
            Recipe(sparsity=0.5, pattern="kernel"),
            PatternError,
            "'fc.weight' (8, 16) has no spatial kernel",
        ),
        (
            Recipe(scope={"fc.weight": 0.5}),
            ArgumentError,
            "no density for 'conv.weight'",
        ),
        (
            Recipe(scope={"*": 0.5, "fd.weight": 0.5}),
            ArgumentError,
            "no score 'fd.weight'",
        ),
        (
            Recipe(density=0.6, pattern="2:4", where="fc.*t"),
            ArgumentError,
            "density 0.6 asks for 77 of 128 entries",
        ),
        (
            Recipe(density=0.001),
            ArgumentError,
            "0 entries cannot keep the floor of 2",
        ),
        (
            Recipe(density=0.5, floor=90),
            ArgumentError,
            "cannot keep the floor of 162",
        ),
    ],
)
def test_a_recipe_that_does_not_fit_the_model(recipe, error, message):
    plan = recipe.check(Net())
    assert [type(p) for p in plan.problems] == [error]
    assert message in str(plan.problems[0])
    with pytest.raises(error, match="the recipe does not fit the model: "):
        plan.enforce()


def test_nan_weights_are_named():
    model = Net()
    with torch.no_grad():
        model.fc.weight[0, 0] = float("nan")
    plan = Recipe(sparsity=0.5).check(model)
    assert "'fc.weight' (1 of 128 entries)" in str(plan.problems[0])


def test_score_data_is_checked_without_running_the_model():
    class Broken(Net):
        def forward(self, x):
            raise RuntimeError("must not run")

    assert Recipe(score="synflow", sparsity=0.5).check(Broken(), example=X).ok
