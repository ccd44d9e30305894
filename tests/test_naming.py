"""Old names go on working for one release, and say the new one."""

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import ArgumentError


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def test_an_old_keyword_means_the_new_one_and_warns_at_the_users_line():
    model, x = net(), torch.ones(1, 3)
    with pytest.warns(DeprecationWarning, match=r"path_norm\(example=") as caught:
        old = sc.path_norm(model, x=x)
    assert float(old) == float(sc.path_norm(model, example=x))
    assert caught[0].filename == __file__


def test_the_old_and_the_new_keyword_together_are_refused():
    x = torch.ones(1, 3)
    with pytest.raises(ArgumentError, match="x is the old name of example"):
        sc.path_norm(net(), x=x, example=x)


def test_the_old_order_of_check_invariance_still_works():
    model, x = net(), torch.ones(1, 3)
    with pytest.warns(DeprecationWarning, match="model, score"):
        old = sc.check_invariance("magnitude", model, x, factors=(1.0,))
    assert old.identical


def test_old_names_of_functions_still_work():
    def train(model, run):
        run.hold(torch.optim.SGD(model.parameters(), lr=0.0))

    with pytest.warns(DeprecationWarning, match="imp is now imp_") as caught:
        found = sc.imp(net(), train, sparsity=0.5, per_round=0.5)
    assert found.report.sparsity == pytest.approx(0.5, abs=0.05)
    assert caught[0].filename == __file__


def test_training_refuses_settings_it_does_not_know():
    with pytest.raises(ArgumentError, match="Did you mean 'schedule'"):
        sc.train.fit_(net(), None, optimizer=None, shedule=None)
