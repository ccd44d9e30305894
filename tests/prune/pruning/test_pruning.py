import copy
import json
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from secateurs.errors import ArgumentError, MaskError, ScoreError, SecateursError
from secateurs.masks import PATTERNS, SCOPES, SELECTIONS, pattern_of, select
from secateurs.masks.patterns import Grouped
from secateurs.prune import SCHEDULES, Recipe, counts, cut, prune_
from secateurs.scores import SCORES, score


class Net(nn.Module):
    """Shapes that every pattern fits, apart from kernels on linear layers."""

    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(4, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.b = nn.Conv2d(8, 4, 2)
        self.fc = nn.Linear(4, 8)

    def forward(self, x):
        return self.fc(torch.relu(self.b(torch.relu(self.norm(self.a(x))))).mean((2, 3)))


X, Y = (
    torch.randn(6, 4, 6, 6, generator=torch.Generator().manual_seed(1)),
    torch.arange(6),
)
DATA = {"batch": (X, Y), "loss": F.cross_entropy}
# Rows round each for themselves and take one pattern: see test_axes.
SCOPE_CASES = [*(n for n in SCOPES.names() if n != "row"), {"*": 0.25, "a.*": 0.35}]


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def unchanged(model, before):
    return all(
        torch.equal(value, before[name]) for name, value in model.state_dict().items()
    ) and not any(p.grad is not None for p in model.parameters())


def expected(scope, sizes, density=Fraction(3, 10)):
    """Oracle for the number kept: the amount is of everything, or of each parameter."""
    if isinstance(scope, dict):
        return sum(
            round((Fraction(7, 20) if name[0] == "a" else Fraction(1, 4)) * n)
            for name, n in sizes.items()
        )
    if scope == "layer":
        return sum(round(density * n) for n in sizes.values())
    return round(density * sum(sizes.values()))


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SCORES.names())
def test_every_score_with_every_scope_pattern_and_selection(name, every):
    """Every third of the combinations, another third for the next score: each is tried with three
    or four scores, and any two choices meet.
    """
    first = SCORES.names().index(name)
    model = Net().eval()
    scores = score(model, name, example=X[:1], **DATA)
    negative = any((s < 0).any() for s in scores.values())
    cases = [
        (scope, pattern, how)
        for scope in SCOPE_CASES
        for pattern in PATTERNS.names()
        # Spectral budgets are slow and see no scores.
        for how in (SELECTIONS.names() if scope != "spectral" or name == "magnitude" else ["topk"])
    ]
    for scope, pattern, how in cases[first % every :: every]:
        _one_case(model, scores, scope, pattern, how, negative)


def _one_case(model, scores, scope, pattern, how, negative):
    where = nn.Conv2d if pattern == "kernel" else None
    amount = {} if isinstance(scope, dict) else {"sparsity": 0.7}

    def rule(task):
        return {name: scores[name] for name in task.parameters}

    def run():
        return cut(
            model,
            Recipe(
                score=rule,
                scope=scope,
                pattern=pattern,
                how=how,
                where=where,
                **amount,
            ),
            generator=torch.Generator().manual_seed(0),
        )

    if negative and SELECTIONS[how].draw is not None:
        with pytest.raises(ScoreError, match="negative values"):
            run()
        return
    pruned = run()
    case = (scope, pattern, how)
    sizes = {name: mask.numel() for name, mask in pruned.masks.items()}
    kept, want = (
        sum(int(mask.sum()) for mask in pruned.masks.values()),
        expected(scope, sizes),
    )
    assert pruned.rounds[-1].kept == pruned.report.total.kept == kept, case
    assert pruned.rounds[-1].asked == want, case
    shape = pattern_of(pattern)
    if isinstance(shape, Grouped):
        largest = [shape.rows(mask).shape[1] for mask in pruned.masks.values()]
        slack = (
            sum(largest)
            if isinstance(scope, dict) or scope == "layer"
            else max(largest) * len(largest)
        )
        assert kept <= want + slack and (kept >= want - slack or not SELECTIONS[how].exact), case
        assert all(
            shape.rows(mask).float().mean(1).frac().eq(0).all() for mask in pruned.masks.values()
        ), case
    elif SELECTIONS[how].exact:
        assert kept == want, case
    else:
        assert 0 < kept <= want, case
    if pattern == "2:4":
        assert all(shape.runs(mask).sum(1).max() <= 2 for mask in pruned.masks.values()), case


@pytest.mark.parametrize("name", SCORES.names())
def test_every_score_prunes_by_name_through_rounds(name):
    model = Net().eval()
    total = sum(p.numel() for p in (model.a.weight, model.b.weight, model.fc.weight))
    pruned = prune_(
        model,
        name,
        sparsity=0.8,
        rounds=3,
        example=X[:1],
        generator=torch.Generator(),
        **DATA,
    )
    wanted = counts("exponential", start=total, end=round(total / 5), rounds=3)
    assert [r.kept for r in pruned.rounds] == [r.asked for r in pruned.rounds] == wanted
    for key, mask in pruned.masks.items():
        assert not model.get_parameter(key)[~mask].any()
        assert model.get_parameter(key).count_nonzero() == mask.sum()


@pytest.mark.parametrize("schedule", list(SCHEDULES))
@pytest.mark.parametrize("scope", ["global", "layer", "erk", {"*": 0.3, "fc.*": 0.1}])
@pytest.mark.parametrize("pattern", ["unstructured", "2:4", "filter", "2x2"])
def test_counts_of_each_round(schedule, scope, pattern):
    rounds = 1 if schedule == "one-shot" else 7
    amount = {} if isinstance(scope, dict) else {"density": 0.3}
    seen = []

    def watching(task):
        seen.append({name: p.detach() != 0 for name, p in task.parameters.items()})
        return {name: p.detach().abs() for name, p in task.parameters.items()}

    recipe = Recipe(
        score=watching,
        rounds=rounds,
        schedule=schedule,
        scope=scope,
        pattern=pattern,
        **amount,
    )
    plan = recipe.check(Net())
    pruned = cut(Net(), recipe)
    assert plan.rounds == tuple(r.asked for r in pruned.rounds) and len(seen) == rounds
    kept = [r.kept for r in pruned.rounds]
    assert kept == sorted(kept, reverse=True)
    for earlier, later in zip(seen, [*seen[1:], pruned.masks], strict=True):
        assert not any((later[name] & ~earlier[name]).any() for name in earlier), (
            "masks only shrink"
        )
    if pattern == "unstructured":
        assert kept == list(plan.rounds)
    elif pattern == "2:4":
        assert kept[-1] == plan.rounds[-1] and max(kept) <= plan.total // 2


@settings(max_examples=30)
@given(
    density=st.floats(0.02, 1),
    rounds=st.integers(1, 9),
    schedule=st.sampled_from(sorted(set(SCHEDULES.names()) - {"one-shot"})),
    how=st.sampled_from(["topk", "sample", "systematic"]),
)
def test_any_amount_is_met_exactly(density, rounds, schedule, how):
    model = nn.Sequential(nn.Linear(7, 11), nn.Linear(11, 3))
    pruned = prune_(model, "magnitude", density=density, rounds=rounds, schedule=schedule, how=how)
    want = round(Fraction(repr(density)) * 110)
    assert pruned.report.total.kept == want and [r.kept for r in pruned.rounds] == [
        r.asked for r in pruned.rounds
    ]
    assert sum(int(m.weight.count_nonzero()) for m in model) == want


def test_frozen_masks():
    model = nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, -1.0, 2.0], [0.5, -4.0, 2.0]]))
    assert cut(model, "magnitude", density=0.5).masks["weight"].tolist() == [
        [True, False, True],
        [False, True, False],
    ]


@pytest.mark.parametrize("scope", ["global", "layer", "row", "uniform", "erk"])
def test_one_shot_is_score_and_select(scope):
    model = Net().eval()
    scores = score(model, "snip", **DATA)
    masks = select(scores, sparsity=0.9, scope=scope)
    pruned = prune_(model, "snip", sparsity=0.9, scope=scope, **DATA)
    assert all(torch.equal(pruned.masks[name], mask) for name, mask in masks.items())
    (only,) = pruned.rounds
    assert only.asked == only.kept


def test_every_row_keeps_its_own_share_whatever_the_rows_keep_together():
    """A tenth of 15 · 25 entries is 38, which would be 3 of each row; a tenth of a row is 2."""
    model = nn.Linear(25, 15)
    for rounds in (1, 3):
        pruned = prune_(copy.deepcopy(model), "magnitude", density=0.1, scope="row", rounds=rounds)
        assert pruned.masks["weight"].sum(1).tolist() == [2] * 15
        assert pruned.rounds[-1].asked == 30 and not pruned.notes


def test_rounds_against_a_written_out_loop():
    """Oracle: zero the weights of a copy, score it afresh, keep the k best among those left."""
    model = Net().eval()
    pruned = cut(model, Recipe(score="synflow", sparsity=0.9, rounds=4), example=X[:1])
    twin = Net().eval()
    twin.load_state_dict(model.state_dict())
    for r in pruned.rounds:
        scores = score(twin, "synflow", example=X[:1])
        flat = torch.cat([s.flatten() for s in scores.values()])
        alive = torch.cat([twin.get_parameter(name).detach().flatten() != 0 for name in scores])
        flat[~alive] = -1
        keep = torch.zeros_like(alive)
        keep[flat.sort(descending=True, stable=True).indices[: r.asked]] = True
        for name, part in zip(
            scores, keep.split([s.numel() for s in scores.values()]), strict=True
        ):
            twin.get_parameter(name).data.mul_(part.view(scores[name].shape))
    for name, mask in pruned.masks.items():
        assert torch.equal(twin.get_parameter(name) != 0, mask)


def test_cut_leaves_the_model_alone_and_prune_changes_only_the_pruned_weights():
    model = Net()
    before = state(model)
    pruned = cut(model, "magnitude", sparsity=0.5)
    assert unchanged(model, before)
    again = prune_(model, "magnitude", sparsity=0.5)
    for name, value in model.state_dict().items():
        mask = pruned.masks.get(name, torch.ones_like(value, dtype=torch.bool))
        assert torch.equal(again.masks.get(name, mask), mask)
        assert torch.equal(value, before[name] * mask)


@pytest.mark.parametrize("bad_round", [0, 2])
@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt, "nan", "shape", "negative"])
def test_all_or_nothing(bad_round, kind):
    model = Net()
    before, calls = state(model), []

    def failing(task):
        scores = {name: p.detach().abs() for name, p in task.parameters.items()}
        calls.append(None)
        if len(calls) - 1 < bad_round:
            return scores
        if kind == "nan":
            return {name: s * float("nan") for name, s in scores.items()}
        if kind == "shape":
            return {name: s[:1] for name, s in scores.items()}
        if kind == "negative":
            return {name: -s - 1 for name, s in scores.items()}
        for p in task.parameters.values():
            p.data.zero_()
        raise kind("injected")

    error = kind if isinstance(kind, type) else ScoreError
    with pytest.raises(error):
        prune_(model, Recipe(score=failing, sparsity=0.9, rounds=4, how="sample"))
    assert len(calls) == bad_round + 1 and unchanged(model, before)


def test_failure_while_masks_are_applied_changes_nothing(monkeypatch):
    model = Net()
    before = state(model)

    def failing(*_):
        raise MaskError("injected")

    monkeypatch.setattr("secateurs.masks.apply.check", failing)
    with pytest.raises(MaskError):
        prune_(model, "magnitude", sparsity=0.5)
    assert unchanged(model, before)


def test_within_earlier_masks():
    model = Net()
    first = prune_(model, "random", sparsity=0.5, generator=torch.Generator().manual_seed(3))
    second = prune_(model, "magnitude", sparsity=0.9, rounds=2, within=first.masks)
    assert not any((second.masks[name] & ~mask).any() for name, mask in first.masks.items())
    total = first.report.total.total
    assert second.rounds[0].asked == round((round(total * 0.5) * round(total * 0.1)) ** 0.5)
    with pytest.raises(SecateursError, match=r"leave only \d+ .density 0.5"):
        prune_(model, "magnitude", sparsity=0.3, within=first.masks)
    with pytest.raises(MaskError, match="no parameter 'b.wieght'"):
        prune_(
            model,
            "magnitude",
            sparsity=0.3,
            within={"b.wieght": first.masks["b.weight"]},
        )


def test_results_tell_what_happened():
    model = Net()
    pruned = prune_(model, Recipe(sparsity=0.5, pattern="filter", rounds=2))
    told = json.loads(pruned.to_json())
    assert told["recipe"] == {"sparsity": 0.5, "pattern": "filter", "rounds": 2}
    assert [r["kept"] for r in told["rounds"]] == [r.kept for r in pruned.rounds]
    assert (
        pruned.rounds[-1].kept == pruned.rounds[-1].asked
        or "groups are kept whole" in pruned.notes[0]
    )
    with pytest.raises(ArgumentError, match="sparsity given beside a recipe"):
        prune_(model, Recipe(sparsity=0.5), sparsity=0.6)
    dead = prune_(
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
        "magnitude",
        density=0,
        floor=0,
    )
    (note,) = dead.notes
    assert note.startswith("nothing is left of 0.weight, 1.weight: secateurs.paths.lost_layers")


@pytest.mark.parametrize("density", [0.0, 1.0])
@pytest.mark.parametrize("schedule", sorted(set(SCHEDULES.names()) - {"one-shot"}))
def test_edges(density, schedule):
    model = Net()
    pruned = prune_(model, "magnitude", density=density, rounds=3, schedule=schedule)
    assert pruned.report.density == density


def test_ties_all_zero_layers_layouts_and_frozen_parameters():
    model = Net().to(memory_format=torch.channels_last).requires_grad_(False)
    with torch.no_grad():
        model.a.weight.fill_(1.0)
        model.b.weight.zero_()
    pruned = prune_(model, "magnitude", density=0.25, scope="layer", rounds=3)
    assert [r.kept for r in pruned.rounds] == [r.asked for r in pruned.rounds]
    assert pruned.masks["b.weight"].sum() == model.b.weight.numel() // 4


def test_tied_parameters_are_counted_once():
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    model["b"].weight = model["a"].weight
    assert prune_(model, "magnitude", sparsity=0.5).report.total.total == 16


def test_same_generator_same_masks_on_one_or_two_threads():
    def draw():
        return cut(
            Net(),
            Recipe(score=_size, sparsity=0.8, rounds=3, how="sample"),
            generator=torch.Generator(),
        )

    threads = torch.get_num_threads()
    torch.manual_seed(0)
    first = draw()
    try:
        torch.set_num_threads(2)
        torch.manual_seed(0)
        second = draw()
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(first.masks[name], second.masks[name]) for name in first.masks)


def _size(task):
    return {name: p.detach().abs() for name, p in task.parameters.items()}
