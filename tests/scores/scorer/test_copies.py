"""A score changes nothing: every registered score, on a model that makes it hard, also when it
raises.
"""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import secateurs as sc
from scores.cases import WHERE, arguments, awkward, changed, picture, scored, seeded
from secateurs.errors import ArgumentError
from secateurs.scores import SCORES, Scorer

NAMES = SCORES.names()


@pytest.mark.parametrize("convention", ["paper", "reference"])
@pytest.mark.parametrize("mode", [None, "train", "eval"])
@pytest.mark.parametrize("name", NAMES)
def test_everything_is_bit_equal_afterwards(name, mode, convention):
    model = awkward()
    before = picture(model)
    options = {"mode": mode} if takes(name, "mode") and mode else {}
    scored(name, model, convention=convention, **options)
    scored(name, model, convention=convention, generator=None, **options)
    assert not changed(before, picture(model))
    assert model.calls == 0


@pytest.mark.parametrize("name", NAMES)
def test_rounds_with_masks_leave_the_model_alone_too(name):
    model = awkward()
    before = picture(model)
    scorer = Scorer(model, name, where=WHERE, generator=seeded(), **arguments())
    masks = {n: torch.rand_like(s) > 0.5 for n, s in scorer.scores().items()}
    state = torch.get_rng_state()
    scorer.scores(masks)
    scorer.scores({n: ~m for n, m in masks.items()})
    torch.set_rng_state(state)
    before["random"] = picture(model)["random"]
    assert not changed(before, picture(model))


@pytest.mark.parametrize("where_it_breaks", ["loss", "forward", "backward", "rule"])
def test_everything_is_bit_equal_after_an_error(where_it_breaks):
    model = awkward()
    before = picture(model)

    def broken(*_):
        torch.rand(3)
        raise RuntimeError("broken")

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            broken()

    calls = {
        "loss": lambda: scored("snip", model, loss=broken),
        "forward": lambda: scored(
            "snip",
            model,
            batch=(torch.ones(1, 99, dtype=torch.float64), torch.tensor([0])),
        ),
        "backward": lambda: scored(
            "grasp", model, loss=lambda o, y: F.cross_entropy(Backward.apply(o), y)
        ),
        "rule": lambda: sc.score(model, broken),
    }
    # A loss that fails is named with its batch; everything else is raised as it is.
    with pytest.raises((RuntimeError, ArgumentError), match=r"broken|size|channels"):
        calls[where_it_breaks]()
    assert not changed(before, picture(model))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_generator_gives_the_same_scores(name):
    model = awkward()
    first, second = scored(name, model), scored(name, model)
    assert list(first) == list(second)
    assert all(torch.equal(first[n], second[n]) for n in first)


@pytest.mark.parametrize("name", ["random", "synflow-chi"])
def test_another_seed_and_a_later_round_give_other_scores(name):
    model = awkward()
    scorer = Scorer(model, name, where=WHERE, generator=seeded(), **arguments())
    first, second = scorer.scores(), scorer.scores()
    other = scored(name, model, generator=seeded(1))
    assert not torch.equal(first["head.weight"], second["head.weight"])
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_dropout_follows_the_generator():
    model = awkward()
    first, other = scored("snip", model), scored("snip", model, generator=seeded(1))
    assert not torch.equal(first["conv.weight"], other["conv.weight"])


@pytest.mark.parametrize("name", NAMES)
def test_one_and_two_threads_agree(name):
    model = awkward()
    try:
        torch.set_num_threads(2)
        two = scored(name, model)
    finally:
        torch.set_num_threads(1)
    one = scored(name, model)
    assert all(torch.equal(one[n], two[n]) for n in one)


@pytest.mark.parametrize("name", NAMES)
def test_frozen_parameters_count_and_tied_ones_count_once(name):
    scores = scored(name, awkward())
    assert list(scores) == [
        "conv.weight",
        "frozen.weight",
        "first.weight",
        "head.weight",
    ]
    assert all(float(tensor.abs().sum()) > 0 for tensor in scores.values())
    assert not any(tensor.requires_grad for tensor in scores.values())


@pytest.mark.parametrize("name", NAMES)
def test_masks_of_a_scorer_mean_zeros_in_the_model(name):
    model = awkward()
    masks = {n: torch.rand_like(s) > 0.4 for n, s in scored("magnitude", model).items()}
    cut = copy.deepcopy(model)
    with torch.no_grad():
        for n, mask in masks.items():
            cut.get_parameter(n).mul_(mask)
    scorer = Scorer(model, name, where=WHERE, generator=seeded(), **arguments())
    direct = scored(name, cut)
    assert all(torch.equal(direct[n], s) for n, s in scorer.scores(masks).items())


@pytest.mark.parametrize("name", NAMES)
def test_nested_and_other_masks_give_the_same_as_a_fresh_scorer(name):
    model = awkward()
    keep = {n: torch.rand_like(s) for n, s in scored("magnitude", model).items()}
    rounds = [{n: k > level for n, k in keep.items()} for level in (0.2, 0.5, 0.3)] + [{}]
    scorer = Scorer(model, name, where=WHERE, generator=seeded(), **arguments())
    for number, masks in enumerate(rounds):
        fresh = Scorer(model, name, where=WHERE, generator=seeded(), **arguments())
        for _ in range(number):
            fresh.scores()
        expected, got = fresh.scores(masks), scorer.scores(masks)
        assert all(torch.equal(expected[n], got[n]) for n in expected)


def test_scores_work_under_no_grad_and_inference_mode():
    expected = scored("snip", awkward())
    model = awkward()
    with torch.no_grad():
        inside = scored("snip", model)
    assert all(torch.equal(expected[n], inside[n]) for n in expected)
    with torch.inference_mode():
        inside = scored("snip", model, batch=(arguments()["batch"]))
    assert all(torch.equal(expected[n], inside[n]) for n in expected)


def test_a_weight_that_weight_norm_computes_can_be_copied():
    with pytest.warns(FutureWarning):
        layer = nn.utils.weight_norm(nn.Linear(4, 3))
    layer(torch.ones(1, 4))
    before = layer.weight.detach().clone()
    assert list(sc.score(layer, "synflow", example=torch.ones(1, 4), where="*")) == [
        "bias",
        "weight_g",
        "weight_v",
    ]
    assert torch.equal(layer.weight, before)


def test_a_model_that_cannot_be_copied_is_refused_by_name():
    layer = nn.Linear(2, 2)
    layer.lock = threading.Lock()
    with pytest.raises(
        sc.errors.ScoreError,
        match="Linear cannot be copied .*remove locks, open files",
    ):
        sc.score(layer, "synflow", example=torch.ones(1, 2))


def takes(name: str, option: str) -> bool:
    from inspect import signature

    return option in signature(SCORES[name].rule).parameters
