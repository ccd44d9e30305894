"""Which optimizers of torch may stand below."""

import copy

import pytest
import torch
from torch import nn

from secateurs.errors import ArgumentError
from secateurs.optim import Factorized


def net(dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4)).to(dtype)


class Keyless(torch.optim.Optimizer):
    """A base that keeps its learning rate to itself."""

    def __init__(self, params):
        super().__init__(params, {})


BAD = [
    ("adam", {}, "base='adam' is not an optimizer class"),
    (
        torch.optim.LBFGS,
        {},
        "base=LBFGS cannot move factors: its step needs a closure.*torch.optim.AdamW",
    ),
    (
        torch.optim.SparseAdam,
        {},
        "base=SparseAdam cannot move factors: it takes sparse gradients only.*Adam",
    ),
    (Keyless, {}, "base=Keyless has no lr"),
    (
        torch.optim.AdamW,
        {"weight_decay": 0.1},
        "weight_decay=0.1: the penalty on the factors is strength=",
    ),
    (
        torch.optim.AdamW,
        {"momentum": 0.9},
        "there is no option of AdamW 'momentum'.*Known: lr, betas",
    ),
    (torch.optim.AdamW, {"beta": (0.9, 0.99)}, "Did you mean 'betas'"),
    (
        torch.optim.AdamW,
        {"lr": -1.0},
        "base=AdamW with base_kwargs=.* is refused by its own constructor: Invalid learning rate",
    ),
    (torch.optim.AdamW, {"differentiable": True}, "differentiable=True"),
    (torch.optim.SGD, {"nesterov": True}, "Nesterov momentum requires"),
]
if hasattr(torch.optim, "Muon"):
    BAD.append(
        (
            torch.optim.Muon,
            {},
            "base=Muon cannot move factors: it moves matrices only.*AdamW",
        )
    )


@pytest.mark.parametrize(("base", "options", "message"), BAD)
def test_bases_that_cannot_work_are_refused(base, options, message):
    model = net()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ArgumentError, match=message):
        Factorized(model.parameters(), base=base, base_kwargs=options)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
