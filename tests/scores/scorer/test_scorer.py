"""The registry, scores of one's own, every error, the edges and one frozen value per score."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import secateurs as sc
from scores.cases import WHERE, arguments, awkward, data, scored, seeded
from secateurs.errors import (
    ArgumentError,
    EmptySelectionError,
    ParameterError,
    ScoreError,
    UnknownNameError,
)
from secateurs.scores import SCORES, Scorer, Task, score_rule

ISSUE = {
    "magnitude",
    "random",
    "snip",
    "grasp",
    "synflow",
    "synflow-chi",
    "jacobian",
    "taylor",
    "wanda",
}


def test_every_score_of_the_issue_is_there_and_described():
    assert set(SCORES.names()) >= ISSUE
    for name in ISSUE:
        assert SCORES[name].description and SCORES[name].name == name


FROZEN = {
    "grasp": -0.47198898033009834,
    "jacobian": 504.5263042419633,
    "magnitude": 5150.774395592511,
    "random": 16550.172205030918,
    "snip": 13.741616265487517,
    "synflow": 89300.83775136822,
    "synflow-chi": 88771.36116412768,
    "taylor": 0.049852495399030396,
    "wanda": 2722.242875890651,
}


@pytest.mark.parametrize("name", sorted(ISSUE))
def test_frozen_values(name):
    """Σ_k k·score_k over all weights, printed once on float64: a change of any formula shows."""
    scores = scored(name, awkward(), mode="eval") if name in MODED else scored(name, awkward())
    flat = torch.cat([tensor.double().flatten() for tensor in scores.values()])
    assert float(flat @ torch.arange(1, len(flat) + 1, dtype=torch.float64)) == pytest.approx(
        FROZEN[name], rel=1e-6
    )


MODED = ISSUE - {"magnitude", "random"}


@pytest.mark.parametrize(
    "name", sorted(ISSUE - {"synflow-chi"})
)  # whose draws depend on the precision
def test_float32_agrees_with_float64(name):
    options = {"mode": "eval"} if name in MODED else {}
    double = scored(name, awkward(), **options)
    single = scored(name, awkward().float(), **arguments(torch.float32), **options)
    for n in double:
        torch.testing.assert_close(
            single[n].double(),
            double[n].double(),
            rtol=2e-3,
            atol=1e-4 * float(double[n].abs().max()),
        )


@pytest.mark.parametrize("name", sorted(ISSUE))
def test_channels_last_and_non_contiguous_weights_score_the_same(name):
    plain = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)).double()
    odd = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)).double()
    odd.load_state_dict(plain.state_dict())
    odd[0].to(memory_format=torch.channels_last)
    odd[3].weight = nn.Parameter(plain[3].weight.detach().t().contiguous().t())
    assert not odd[0].weight.is_contiguous() and not odd[3].weight.is_contiguous()
    masks = {
        "0.weight": torch.rand(4, 2, 3, 3) > 0.5,
        "3.weight": torch.rand(16, 3).t() > 0.5,
    }
    for mask in ({}, masks):
        expected, got = (
            Scorer(m, name, generator=seeded(), **arguments()).scores(mask) for m in (plain, odd)
        )
        for n in expected:
            torch.testing.assert_close(got[n], expected[n])


@pytest.mark.parametrize("name", sorted(ISSUE))
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_scales_of_the_inputs(name, scale):
    """f and L are linear in x: so are the scores that see it (Taylor: squared), at any scale."""
    net = nn.Linear(3, 2, bias=False).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    plain, scaled = (
        sc.score(
            net,
            name,
            batch=(data, x),
            loss=lambda o, _: o.sum(1).mean(),
            generator=seeded(),
        )["weight"]
        for data in (x, x * scale)
    )
    power = {"snip": 1, "jacobian": 1, "wanda": 1, "taylor": 2}.get(name, 0)
    torch.testing.assert_close(scaled, plain * scale**power)


def test_bfloat16_models_work():
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).bfloat16()
    x = torch.randn(4, 8, dtype=torch.bfloat16)
    for name in sorted(ISSUE):
        scores = sc.score(
            net,
            name,
            batch=(x, torch.tensor([0, 1, 2, 0])),
            loss=F.cross_entropy,
            generator=seeded(),
        )
        assert all(
            bool(s.isfinite().all()) and float(s.float().abs().sum()) > 0 for s in scores.values()
        ), name


def test_one_channel_and_an_all_zero_layer():
    net = nn.Sequential(
        nn.Conv2d(1, 1, 1, bias=False), nn.Flatten(), nn.Linear(4, 2, bias=False)
    ).double()
    nn.init.zeros_(net[2].weight)
    x = torch.randn(2, 1, 2, 2, dtype=torch.float64)
    for name in sorted(ISSUE - {"random"}):
        scores = sc.score(
            net,
            name,
            batch=(x, torch.tensor([0, 1])),
            loss=F.cross_entropy,
            generator=seeded(),
        )
        assert float(scores["2.weight"].abs().sum()) == 0, name


def test_a_score_of_ones_own_as_a_callable_and_by_name():
    def fan(task: Task, *, power: float = 1.0):
        return {
            name: p.detach().abs() ** power / p[0].numel() for name, p in task.parameters.items()
        }

    model = nn.Linear(4, 2)
    expected = model.weight.detach() ** 2 / 4
    assert torch.allclose(sc.score(model, fan, power=2.0)["weight"], expected)
    if "fan-of-this-test" not in SCORES:
        score_rule("fan-of-this-test", runs=False)(fan)
    try:
        assert torch.allclose(sc.score(model, "fan-of-this-test", power=2.0)["weight"], expected)
    finally:
        SCORES._rules.pop("fan-of-this-test")


def test_a_rule_of_ones_own_may_ruin_its_copy():
    def ruin(task):
        for p in task.model.parameters():
            p.data.zero_()
        return {name: torch.ones_like(p) for name, p in task.parameters.items()}

    model = nn.Linear(4, 2)
    before = model.weight.detach().clone()
    scorer = Scorer(model, ruin)
    scorer.scores(), scorer.scores()
    assert torch.equal(model.weight, before)


def test_data_may_be_an_iterator_read_twice_by_grasp():
    x, y = data()
    whole = scored("grasp", awkward(), batch=[(x[:3], y[:3]), (x[3:], y[3:])], mode="eval")
    streamed = scored(
        "grasp",
        awkward(),
        batch=((x[i : i + 3], y[i : i + 3]) for i in (0, 3)),
        mode="eval",
    )
    assert all(torch.equal(whole[n], streamed[n]) for n in whole)


def test_data_may_be_a_data_loader():
    x, y = data()
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y), batch_size=4, shuffle=True
    )
    model, state = awkward(), torch.get_rng_state()
    by_loader, by_batch = (scored("snip", model, batch=b, mode="eval") for b in (loader, (x, y)))
    assert torch.equal(torch.get_rng_state(), state)
    for n in by_batch:
        torch.testing.assert_close(by_loader[n], by_batch[n])


def test_inputs_may_be_several():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, a, b):
            return (self.layer(a + b),)

    net, (a, b), y = Sum(), torch.randn(2, 4, 3), torch.tensor([0, 1, 0, 1])
    positional = sc.score(net, "snip", batch=((a, b), y), loss=F.cross_entropy)["layer.weight"]
    keyword = sc.score(net, "snip", batch=({"a": a, "b": b}, y), loss=F.cross_entropy)[
        "layer.weight"
    ]
    plain = sc.score(net.layer, "snip", batch=(a + b, y), loss=F.cross_entropy)["weight"]
    assert torch.equal(positional, keyword)
    torch.testing.assert_close(positional, plain)


def bad_weights(value):
    model = awkward()
    with torch.no_grad():
        model.head.weight[0, 0] = value
    return model


NAN = float("nan")
X, Y = data()
ERRORS = [
    (
        "unknown",
        lambda: sc.score(awkward(), "sniff"),
        UnknownNameError,
        "no score 'sniff'. Did you mean 'snip'",
    ),
    (
        "not a rule",
        lambda: sc.score(awkward(), 3),
        ArgumentError,
        "a score is a name or a callable",
    ),
    (
        "convention",
        lambda: scored("snip", awkward(), convention="papers"),
        ArgumentError,
        "convention='papers'; it is",
    ),
    (
        "option",
        lambda: scored("grasp", awkward(), temprature=2),
        ArgumentError,
        "no option of score 'grasp' 'temprature'. Did you mean 'temperature'",
    ),
    (
        "no option",
        lambda: scored("magnitude", awkward(), mode="eval"),
        ArgumentError,
        "no option of score 'magnitude' 'mode'",
    ),
    (
        "needs",
        lambda: sc.score(awkward(), "snip"),
        ArgumentError,
        r"score 'snip' needs batch=\(x, y\), .* and loss=a function",
    ),
    (
        "example",
        lambda: sc.score(awkward(), "synflow"),
        ArgumentError,
        "score 'synflow' needs example=one input",
    ),
    (
        "mode",
        lambda: scored("snip", awkward(), mode="test"),
        ArgumentError,
        "mode is 'test'; it is 'keep'",
    ),
    (
        "temperature",
        lambda: scored("grasp", awkward(), temperature=0),
        ArgumentError,
        "temperature is 0; .* positive",
    ),
    (
        "draws",
        lambda: scored("jacobian", awkward(), draws=0),
        ArgumentError,
        "draws is 0; give at least 1",
    ),
    (
        "no targets",
        lambda: scored("snip", awkward(), batch=[X, Y]),
        ArgumentError,
        "batch 0 has no targets, .* as a tuple",
    ),
    (
        "three parts",
        lambda: scored("snip", awkward(), batch=(X, Y, Y)),
        ArgumentError,
        "batch is a tuple of length 3",
    ),
    (
        "no batch",
        lambda: scored("snip", awkward(), batch=[]),
        ArgumentError,
        "the data has no batch",
    ),
    (
        "loss per example",
        lambda: scored(
            "snip",
            awkward(),
            loss=lambda o, y: F.cross_entropy(o, y, reduction="none"),
        ),
        ArgumentError,
        r"loss returned a tensor of shape \(6,\); it must average",
    ),
    (
        "loss is a number",
        lambda: scored("snip", awkward(), loss=lambda o, y: 1.0),
        ArgumentError,
        "loss returned",
    ),
    (
        "detached",
        lambda: scored("snip", awkward(), loss=lambda o, y: o.detach().sum()),
        ScoreError,
        "do not depend on any chosen parameter",
    ),
    (
        "NaN weight",
        lambda: scored("magnitude", bad_weights(NAN)),
        ParameterError,
        r"weights are NaN or infinite in 'head.weight' \(1 of 24 entries\)",
    ),
    (
        "infinite weight",
        lambda: scored("synflow", bad_weights(float("inf"))),
        ParameterError,
        "'head.weight'",
    ),
    (
        "NaN score",
        lambda: scored("snip", awkward(), loss=lambda o, y: (o * NAN).sum()),
        ScoreError,
        r"score 'snip' is NaN or infinite in 'conv.weight' \(36 of 36 entries\)",
    ),
    (
        "nothing chosen",
        lambda: sc.score(nn.ReLU(), "magnitude"),
        EmptySelectionError,
        "no parameter of ReLU",
    ),
    (
        "missing",
        lambda: sc.score(awkward(), lambda task: {}),
        ScoreError,
        "'conv.weight' has no score; .*'head.weight' has no",
    ),
    (
        "extra",
        lambda: sc.score(
            nn.Linear(2, 2),
            lambda t: {"weight": t.parameters["weight"], "bias": torch.ones(2)},
        ),
        ScoreError,
        "'bias' was not asked for",
    ),
    (
        "shape",
        lambda: sc.score(nn.Linear(2, 2), lambda t: {"weight": torch.ones(3)}),
        ScoreError,
        r"the score of 'weight' has shape \(3,\), the parameter \(2, 2\)",
    ),
    (
        "not a mapping",
        lambda: sc.score(nn.Linear(2, 2), lambda t: torch.ones(3)),
        ScoreError,
        "returned a Tensor; it returns",
    ),
    (
        "no tensor",
        lambda: sc.score(nn.Linear(2, 2), lambda t: {"weight": 3}),
        ScoreError,
        "the score of 'weight' is a int",
    ),
    (
        "mask name",
        lambda: Scorer(nn.Linear(2, 2), "magnitude").scores({"wieght": torch.ones(2, 2).bool()}),
        ScoreError,
        "no scored parameter 'wieght'. Did you mean 'weight'",
    ),
    (
        "mask shape",
        lambda: Scorer(nn.Linear(2, 2), "magnitude").scores({"weight": torch.ones(2).bool()}),
        ScoreError,
        r"'weight' has shape \(2, 2\), but its mask has shape \(2,\)",
    ),
    (
        "mask type",
        lambda: Scorer(nn.Linear(2, 2), "magnitude").scores({"weight": torch.ones(2, 2)}),
        ScoreError,
        "'weight' has a mask of torch.float32 values",
    ),
    (
        "need",
        lambda: score_rule("x", needs=("data",)),
        ArgumentError,
        r"score 'x' needs \['data'\]; a rule can need",
    ),
    (
        "output",
        lambda: sc.score(nn.Linear(2, 2), "synflow", example=(torch.ones(1, 3),)),
        ArgumentError,
        "shapes",
    ),
]


@pytest.mark.parametrize(
    ("call", "kind", "words"), [e[1:] for e in ERRORS], ids=[e[0] for e in ERRORS]
)
def test_errors_name_the_place_the_value_and_the_way_out(call, kind, words):
    with pytest.raises(kind, match=words):
        call()


def test_a_model_without_floating_outputs_is_refused():
    class Class(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            return {"class": self.layer(x).argmax(1)}

    with pytest.raises(ScoreError, match="output, a dict, holds no floating-point tensor"):
        sc.score(Class(), "synflow", example=torch.ones(1, 2))


def test_where_chooses():
    assert list(sc.score(awkward(), "magnitude", where="head.*")) == [
        "head.weight",
        "head.bias",
    ]
    assert WHERE
