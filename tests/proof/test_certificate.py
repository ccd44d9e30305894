"""What a certificate prints, and its JSON."""

import copy
import json
import math

import torch
from torch import nn

import secateurs as sc
from secateurs.proof.methods import automatic
from secateurs.proof.recheck import recheck
from secateurs.proof.record import Worth
from tiny_networks import (
    pruned,
)


def test_hashes_of_weights_are_those_of_the_proof():
    """They are computed when somebody asks, of the weights as they were."""
    from secateurs.proof.record import states_of

    first = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1)).eval()
    first.register_buffer("unread", torch.tensor([1, 2]))
    for model in (first, copy.deepcopy(first).double(), copy.deepcopy(first).bfloat16()):
        other = copy.deepcopy(model)
        with torch.no_grad():
            other[0].weight.mul_(0.5)
        before = states_of(model, other)
        cert = sc.certify(model, other, around=torch.zeros(1, 2), radius=0.1)
        with torch.no_grad():
            other[0].weight.zero_()
            other.unread.add_(1)
            model[1].running_mean.add_(1)
        assert dict(cert.states) == before != states_of(model, other)
        assert json.loads(cert.to_json())["states"] == before


def test_json_and_tables(dense, generator, x):
    cert = sc.certify(dense, pruned(dense, generator), around=x, radius=0.1)
    told = json.loads(cert.to_json())
    assert told["bound"] == cert.bound
    assert cert.as_dict() == json.loads(cert.to_json(boxes=False))
    assert told["domain"] == "4 ℓ∞-balls of radius 0.1"
    assert cert.__rich__().row_count == len(automatic())
    assert str(cert).startswith("‖f − g‖_∞ ≤ ")


def test_an_unbounded_bound_is_null_in_json(generator):
    deep = nn.Sequential(
        *[layer for _ in range(40) for layer in (nn.Linear(1, 1), nn.ReLU())]
    ).double()
    with torch.no_grad():
        for parameter in deep.parameters():
            parameter.fill_(1e10)
    cert = sc.certify(
        deep,
        pruned(deep, generator),
        box=(torch.zeros(1, 1), torch.ones(1, 1)),
        restarts=0,
        steps=0,
    )
    assert cert.bound == math.inf
    assert json.loads(cert.to_json())["bound"] is None


class Centred(nn.Module):
    """Samples of a batch act on each other."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x - 0.5 * x.mean(dim=0, keepdim=True))


def test_the_verdict_says_that_each_input_is_alone():
    f, g = Centred(), Centred()
    cert = sc.certify(f, g, box=(torch.zeros(1, 3), torch.ones(1, 3)))
    assert cert.verdict.startswith("each input alone: ")
    assert json.loads(cert.to_json())["verdict"] == cert.verdict
    assert recheck(cert.to_json(), f, g).holds
    f, g = nn.Linear(3, 2), nn.Linear(3, 2)
    cert = sc.certify(f, g, box=(torch.zeros(1, 3), torch.ones(1, 3)))
    assert "alone" not in cert.verdict


def test_a_verdict_claims_no_difference_that_rounding_may_have_made():
    text = Worth(bound=0.5, lower_bound=0.0, largest=0.5, output_range=1.0).text
    assert "no difference was found that rounding cannot have made" in text
    assert "somewhere by 0" not in text
