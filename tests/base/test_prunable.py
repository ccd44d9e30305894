import pytest
import torch
import torch.nn.utils.prune
from torch import nn

from secateurs.base.parameters import aliases
from secateurs.base.prunable import choose, prunable
from secateurs.errors import (
    ArgumentError,
    EmptySelectionError,
    ParameterError,
)


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
        ParameterError,
        match=r"no parameter 'frist\.weight'. Did you mean 'first\.weight'",
    ):
        prunable(Tied(), "frist.weight")


def test_an_empty_sequence_chooses_nothing():
    with pytest.raises(EmptySelectionError, match="no parameter of Tied is chosen"):
        prunable(Tied(), [])


def test_empty_selection_names_what_there_is():
    with pytest.raises(EmptySelectionError, match=r"embed\.weight"):
        prunable(Tied(), nn.Conv2d)


def test_all_problems_in_one_error():
    model = nn.ModuleDict(
        {
            "lazy": nn.LazyLinear(3),
            "meta": nn.Linear(3, 3, device="meta"),
            "fine": nn.Linear(2, 2),
        }
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


def tied_language_model():
    """An embedding first, the head tied to it behind, as in GPT-2."""
    model = nn.Sequential()
    model.wte = nn.Embedding(6, 4)
    model.h = nn.Linear(4, 4)
    model.lm_head = nn.Linear(4, 6, bias=False)
    model.lm_head.weight = model.wte.weight
    return model


@pytest.mark.parametrize("where", [["*", "!lm_head*"], ["*weight", "!wte*"], "!lm_head*", None])
def test_excluding_any_name_excludes_the_tensor(where):
    chosen = choose(tied_language_model(), where)
    assert "wte.weight" not in chosen.parameters
    assert "h.weight" in chosen.parameters


def test_the_default_rule_looks_at_every_name():
    model = nn.Sequential()
    model.head = nn.Linear(4, 6, bias=False)
    model.embed = nn.Embedding(6, 4)
    model.embed.weight = model.head.weight
    model.h = nn.Linear(4, 4)
    chosen = choose(model)
    assert list(chosen.parameters) == ["h.weight"]
    assert chosen.skipped["head.weight"] == "belongs to Embedding, as 'embed.weight'"
    assert list(choose(model, nn.Linear).parameters) == ["h.weight"]


def test_including_by_another_name_says_so():
    chosen = choose(tied_language_model(), "lm_head.weight")
    assert list(chosen.parameters) == ["wte.weight"]
    assert chosen.notes == (
        "'lm_head.weight' is tied: it is the parameter 'wte.weight', listed as that",
    )
    assert not choose(tied_language_model(), "wte.weight").notes


def test_a_predicate_must_agree_under_every_name():
    without_head = lambda name, parameter: not name.startswith("lm_head")  # noqa: E731
    assert "wte.weight" not in prunable(tied_language_model(), without_head)
    either = lambda name, parameter: name.endswith("weight")  # noqa: E731
    assert "wte.weight" in prunable(tied_language_model(), either)


def test_predicates_of_two_and_three_arguments():
    two = prunable(Tied(), lambda name, parameter: name == "free")
    three = prunable(Tied(), lambda name, parameter, module: isinstance(module, nn.Linear))
    assert list(two) == ["free"] and "head.weight" in three
    with pytest.raises(ParameterError, match="takes 1 arguments: it is called with"):
        prunable(Tied(), lambda name: True)


def test_what_is_no_rule_is_named():
    with pytest.raises(ParameterError, match=r"given a module \(Linear"):
        prunable(Tied(), nn.Linear(2, 2))
    with pytest.raises(ParameterError, match=r"given a tensor of shape \(3, 3\)"):
        prunable(Tied(), nn.Parameter(torch.ones(3, 3)))
    with pytest.raises(ArgumentError, match="class Tied, not a model: call it"):
        prunable(Tied)
    with pytest.raises(ArgumentError, match="load_state_dict"):
        prunable(Tied().state_dict())


class RMSNorm(nn.Module):
    """A norm over two dimensions, as third-party models bring their own."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 4))


class Tables(nn.Module):
    """Bare parameters that are added or looked up, and two that are multiplied."""

    def __init__(self):
        super().__init__()
        self.norm = RMSNorm()
        self.torch_norm = nn.RMSNorm((3, 4))
        for name in (
            *(
                "pos_embed",
                "position_embeddings",
                "relative_position_bias_table",
                "rel_pos_h",
            ),
            *(
                "positional_encoding",
                "posemb",
                "mask_token",
                "attn_bias",
                "alibi_slopes",
                "w",
                "pe",
            ),
        ):
            self.register_parameter(name, nn.Parameter(torch.randn(3, 4)))
        self.position_mixer = nn.Linear(3, 4, bias=False)
        self.attention = nn.MultiheadAttention(4, 2, add_bias_kv=True, bias=False)
        self.normed = torch.nn.utils.weight_norm(nn.Linear(3, 4, bias=False))


def test_tables_of_positions_and_wide_norms_are_left_out():
    assert list(choose(Tables()).parameters) == [
        *("w", "position_mixer.weight", "attention.in_proj_weight"),
        *("attention.out_proj.weight", "normed.weight_v"),
    ]


def test_a_model_pruned_by_torch_is_not_pruned_through_its_inside():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    torch.nn.utils.prune.l1_unstructured(model[0], "weight", amount=0.5)
    for where in (None, "0.weight_orig"):
        with pytest.raises(ParameterError, match=r"remove\(\) first"):
            prunable(model, where)
    torch.nn.utils.prune.remove(model[0], "weight")
    assert set(prunable(model)) == {"0.weight", "1.weight"}
