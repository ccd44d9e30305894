import pytest
from torch import nn

from secateurs.base.where import pick
from secateurs.errors import ArgumentError


def test_pick_sees_ties_too():
    model = nn.Sequential()
    model.wte = nn.Embedding(6, 4)
    model.h = nn.Linear(4, 4)
    model.lm_head = nn.Linear(4, 6, bias=False)
    model.lm_head.weight = model.wte.weight
    named_twice = dict(model.named_parameters(remove_duplicate=False))
    assert pick(named_twice, ["*", "!lm_head*"]) == {"h.weight", "h.bias"}
    assert pick(named_twice, "lm_head*") == {"wte.weight", "lm_head.weight"}


def test_a_predicate_of_modules_is_refused_where_none_are_known():
    with pytest.raises(ArgumentError, match="modules are not known here"):
        pick(dict(nn.Linear(2, 2).named_parameters()), lambda name, parameter, module: True)
