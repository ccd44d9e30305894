"""Mistakes a newcomer makes, in one table: each is named with its place, value and way out."""

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import SecateursError
from secateurs.masks import from_torch_prune


def net():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


def prune(*args, **fields):
    return sc.prune_(*(args or (net(), "magnitude")), **{"sparsity": 0.5, **fields})


def parallel():
    return nn.DataParallel(net())


def held(masks, optimizer=None):
    model = net()
    return sc.hold(
        model, masks, optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    )


MISTAKES = {
    "a state dict": (lambda: prune(net().state_dict(), "magnitude"), "load_state_dict"),
    "a class": (
        lambda: prune(nn.Linear, "magnitude"),
        "class Linear, not a model: call it",
    ),
    "a tensor as model": (
        lambda: prune(torch.ones(2), "magnitude"),
        "model is a Tensor",
    ),
    "no model": (lambda: prune(None, "magnitude"), "model is a NoneType"),
    "a wrapped model": (lambda: prune(parallel(), "snip"), r"give model\.module"),
    "a seed": (lambda: prune(generator=0), r"generator=0 is a int.*manual_seed\(0\)"),
    "a generator by name": (lambda: prune(generator="cpu"), "generator='cpu' is a str"),
    "a score that is none": (
        lambda: prune(net(), "magnitud"),
        "Did you mean 'magnitude'",
    ),
    "a percentage": (lambda: prune(sparsity=90), "not between 0 and 1"),
    "two amounts": (lambda: prune(density=0.5), "give one of sparsity, density"),
    "no amount": (lambda: sc.prune_(net(), "magnitude"), "how much to keep is missing"),
    "a typo in a field": (lambda: prune(patern="2:4"), "Did you mean 'pattern'"),
    "a scope that is none": (lambda: prune(scope="layers"), "Did you mean 'layer'"),
    "a pattern that is none": (
        lambda: prune(pattern="filters"),
        "Did you mean 'filter'",
    ),
    "a pattern that does not fit": (
        lambda: prune(pattern="4:16"),
        r"'0\.weight' \(8, 6\) has 6",
    ),
    "no rounds": (lambda: prune(rounds=0), "rounds=0 is not a whole number"),
    "a module as where": (lambda: prune(where=nn.Linear(2, 2)), "given a module"),
    "a parameter as where": (
        lambda: prune(where=net()[0].weight),
        "given a tensor of shape",
    ),
    "a type that is no module": (lambda: prune(where=int), "is no type of module"),
    "a number as where": (lambda: prune(where=3), "neither a glob"),
    "a glob of nothing": (lambda: prune(where="conv*"), r"no parameter 'conv\*'"),
    "an empty where": (lambda: prune(where=[]), "no parameter of Sequential is chosen"),
    "a predicate of one": (lambda: prune(where=lambda name: True), "takes 1 arguments"),
    "only biases": (
        lambda: prune(where=nn.ReLU),
        "no parameter of Sequential is chosen",
    ),
    "snip without data": (lambda: prune(net(), "snip"), "batch="),
    "of something": (lambda: prune(of="rest"), "of='rest'; it is 'all'"),
    "a mask of another shape": (
        lambda: prune(within={"0.weight": torch.ones(2, 2, dtype=torch.bool)}),
        r"shape \(8, 6\), but its mask has shape \(2, 2\)",
    ),
    "a float mask": (lambda: held({"0.weight": torch.ones(8, 6)}), "not of booleans"),
    "a list as mask": (lambda: held({"0.weight": [True]}), "is a list, not a tensor"),
    "no masks": (lambda: held({}), "there are no masks"),
    "a mask of nobody": (
        lambda: held({"3.weight": torch.ones(1, dtype=torch.bool)}),
        r"no parameter '3\.weight'",
    ),
    "masks that are none": (lambda: held(torch.ones(2)), "masks are a Tensor"),
    "a scheduler for an optimizer": (
        lambda: held(prune(), optimizer=object()),
        "torch.optim.Optimizer, not object",
    ),
    "a checkpoint": (lambda: from_torch_prune({"state_dict": {}}), r"\['state_dict'\]"),
    "a dense state dict": (
        lambda: from_torch_prune(net().state_dict()),
        "no mask among the 4",
    ),
    "a factorized depth of 1": (
        lambda: sc.optim.FactorizedSGD(net().parameters(), depth=1),
        "depth=1 is not",
    ),
    "a start that is none": (
        lambda: sc.optim.FactorizedSGD(net().parameters(), init="pretraind"),
        "Did you mean 'pretrained'",
    ),
    "a target without steps": (
        lambda: sc.optim.FactorizedSGD(net().parameters(), target_sparsity=0.9),
        "needs steps=",
    ),
    "a loss as closure": (
        lambda: sc.optim.FactorizedSGD(net().parameters()).step(torch.zeros(())),
        "closure is a Tensor",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake):
    make, message = MISTAKES[mistake]
    with pytest.raises(SecateursError, match=message):
        make()
