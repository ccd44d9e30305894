import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel

from secateurs.errors import ArgumentError, MaskError, ParameterError, SecateursError
from secateurs.prune import GradualPruning, Recipe
from secateurs.prune.rounds import counts_at


def make(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 5))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)


def train(model, optimizer, x):
    optimizer.zero_grad()
    F.mse_loss(model(x), x).backward()
    optimizer.step()


def test_cubic_sparsity_and_zeros_held_between_the_cuts():
    model, optimizer = make()
    gradual = GradualPruning(model, Recipe(sparsity=0.9), optimizer, start=10, end=50, every=8)
    sizes, done = [], {}
    for iteration in range(1, 61):
        train(model, optimizer, torch.randn(8, 5))
        entry = gradual.step()
        if entry:
            done[iteration] = entry
        alive = sum(int(p.count_nonzero()) for p in model.parameters() if p.ndim == 2)
        sizes.append(alive)
        assert alive == (gradual.rounds[-1].kept if gradual.rounds else 200)
    assert list(done) == [18, 26, 34, 42, 50] and gradual.finished
    assert [e.kept for e in done.values()] == [e.asked for e in done.values()]
    assert [e.kept for e in done.values()] == counts_at(
        "cubic", [0.2, 0.4, 0.6, 0.8, 1], start=200, end=20
    )
    assert [e.number for e in done.values()] == [1, 2, 3, 4, 5] and sizes[-1] == 20
    for name, mask in gradual.masks.items():
        assert not optimizer.state[model.get_parameter(name)]["momentum_buffer"][~mask].any()
    gradual.held.release()
    train(model, optimizer, torch.randn(8, 5))
    assert sum(int(p.count_nonzero()) for p in model.parameters() if p.ndim == 2) > 20


@pytest.mark.parametrize("schedule", ["linear", "exponential", "one-shot", None])
@pytest.mark.parametrize("scope", ["global", "layer"])
def test_other_schedules_scopes_and_a_period_that_does_not_divide(schedule, scope):
    model, optimizer = make()
    recipe = Recipe(
        score="snip",
        sparsity=0.8,
        schedule=schedule,
        scope=scope,
        pattern="unstructured",
    )
    x = torch.randn(8, 5)
    gradual = GradualPruning(
        model,
        recipe,
        optimizer,
        start="1ep",
        end="3ep",
        every="7it",
        batches_per_epoch=5,
        batch=(x, x),
        loss=F.mse_loss,
    )
    for _ in range(15):
        train(model, optimizer, x)
        gradual.step()
    assert [r.kept for r in gradual.rounds] == [r.asked for r in gradual.rounds]
    assert len(gradual.rounds) == 2 and gradual.rounds[-1].kept == 40 and gradual.finished


def test_followed_average_and_within():
    model, optimizer = make()
    within = {"0.weight": torch.rand(20, 5) < 0.5}
    recipe = Recipe(score="random", sparsity=0.9)
    gradual = GradualPruning(
        model,
        recipe,
        optimizer,
        start=0,
        end=6,
        every=2,
        within=within,
        generator=torch.Generator(),
    )
    ema = AveragedModel(model)
    gradual.held.follow(ema)
    for _ in range(8):
        train(model, optimizer, torch.randn(8, 5))
        gradual.step()
        ema.update_parameters(model)
        assert all(not ema.module.get_parameter(n)[~m].any() for n, m in gradual.masks.items())
    assert (
        not (gradual.masks["0.weight"] & ~within["0.weight"]).any()
        and gradual.rounds[-1].kept == 20
    )


def test_an_error_in_step_changes_nothing_and_the_step_can_be_repeated():
    model, optimizer = make()
    gradual = GradualPruning(model, Recipe(sparsity=0.9), optimizer, start=0, end=4, every=2)
    train(model, optimizer, torch.randn(8, 5))
    gradual.step()
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ParameterError, match="'0.weight' .1 of 100 entries"):
        gradual.step()
    assert gradual.iteration == 1 and not gradual.rounds
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items() if k != "0.weight")
    with torch.no_grad():
        model[0].weight[0, 0] = 1.0
    assert gradual.step().number == 1


def test_checkpoint_and_resume():
    model, optimizer = make()
    recipe = Recipe(sparsity=0.9)
    gradual = GradualPruning(model, recipe, optimizer, start=0, end=8, every=2)
    for _ in range(5):
        train(model, optimizer, torch.ones(8, 5))
        gradual.step()
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), gradual.state_dict()))
    other, other_optimizer = make(seed=1)
    other.load_state_dict(saved[0])
    other_optimizer.load_state_dict(saved[1])
    resumed = GradualPruning(other, recipe, other_optimizer, start=0, end=8, every=2)
    resumed.load_state_dict(saved[2])
    for m, o, g in ((model, optimizer, gradual), (other, other_optimizer, resumed)):
        for _ in range(5):
            train(m, o, torch.ones(8, 5))
            g.step()
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )
    assert resumed.finished and all(
        torch.equal(m, resumed.masks[n]) for n, m in gradual.masks.items()
    )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"start": 5, "end": 5},
            ArgumentError,
            "cannot prune every 1 steps from 5 to 5",
        ),
        ({"every": 0}, ArgumentError, "cannot prune every 0 steps"),
        (
            {"start": "1ep"},
            ArgumentError,
            "'1ep' counts epochs .* give batches_per_epoch",
        ),
        (
            {"recipe": Recipe(sparsity=0.5, rounds=3)},
            ArgumentError,
            "the recipe has rounds=3, but during training",
        ),
        (
            {"recipe": Recipe(score="snip", sparsity=0.5)},
            ArgumentError,
            "score 'snip' needs batch=",
        ),
        (
            {"optimizer": "half"},
            MaskError,
            "'2.weight' is not among the parameters of this SGD",
        ),
    ],
)
def test_refusals_before_anything_is_held(change, error, message):
    model, optimizer = make()
    options = {
        "recipe": Recipe(sparsity=0.5),
        "optimizer": optimizer,
        "start": 0,
        "end": 9,
        "every": 1,
        **change,
    }
    if options["optimizer"] == "half":
        options["optimizer"] = optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with pytest.raises(error, match=message):
        GradualPruning(model, **options)
    assert not optimizer._optimizer_step_post_hooks
    assert issubclass(error, SecateursError)
