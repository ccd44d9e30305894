import pytest
import torch
from torch import nn

from secateurs.errors import EmptySelectionError, ParameterError
from secateurs.parameters import aliases, choose, named, prunable


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.first = nn.Linear(4, 4)
        self.norm = nn.LayerNorm((4, 4))
        self.head = nn.Linear(4, 5, bias=False)
        self.again = nn.Linear(4, 4)
        self.again.weight = self.first.weight
        self.token = nn.Parameter(torch.zeros(1, 1, 4))
        self.free = nn.Parameter(torch.ones(3, 3))


def test_default_rule_takes_weights_and_leaves_norms_tokens_embeddings():
    chosen = choose(Tied())
    assert list(chosen.parameters) == ["free", "first.weight", "head.weight"]
    assert set(chosen.skipped) == {
        "token",
        "embed.weight",
        "first.bias",
        "norm.weight",
        "norm.bias",
        "again.bias",
    }
    assert not chosen.problems


def test_one_output_linear_is_a_weight():
    assert list(prunable(nn.Linear(7, 1))) == ["weight"]


def test_tied_parameters_are_listed_once():
    assert aliases(Tied()) == {"again.weight": "first.weight"}


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("first.*", ["first.weight", "first.bias"]),
        (["!head.*"], ["free", "first.weight"]),
        (nn.Linear, ["first.weight", "head.weight"]),
        (
            lambda name, parameter, owner: parameter.numel() == 16,
            ["first.weight", "norm.weight", "norm.bias"],
        ),
        (["free", nn.Linear, "!first*"], ["free", "head.weight"]),
    ],
)
def test_where(where, expected):
    assert list(prunable(Tied(), where)) == expected


def test_typo_is_refused_with_the_names():
    with pytest.raises(
        ParameterError, match=r"no parameter 'frist\.weight'. Did you mean 'first\.weight'"
    ):
        prunable(Tied(), "frist.weight")


def test_empty_selection_names_what_there_is():
    with pytest.raises(EmptySelectionError, match=r"embed\.weight"):
        prunable(Tied(), nn.Conv2d)


def test_all_problems_in_one_error():
    model = nn.ModuleDict(
        {"lazy": nn.LazyLinear(3), "meta": nn.Linear(3, 3, device="meta"), "fine": nn.Linear(2, 2)}
    )
    model.wave = nn.Parameter(torch.zeros(2, 2, dtype=torch.cfloat))
    model.count = nn.Parameter(torch.zeros(2, 2, dtype=torch.int8), requires_grad=False)
    with pytest.raises(ParameterError) as caught:
        prunable(model)
    for text in (
        "5 problem(s)",
        "'lazy.weight' is lazy",
        "'meta.weight' is on the meta",
        "'wave' is complex",
        "'count'",
    ):
        assert text in str(caught.value)


def test_frozen_parameters_are_weights_too():
    assert list(prunable(nn.Linear(3, 3).requires_grad_(False))) == ["weight"]


def test_named_suggests():
    with pytest.raises(ParameterError, match="Did you mean 'first.weight'"):
        named(Tied(), ["first.wieght"])
