"""A kept certificate: what its text holds, and how it is proved again."""

import copy
import json
import math

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import ArgumentError, DomainError
from secateurs.paths import recheck
from secateurs.random import generator as seeded
from tiny_networks import fully_connected, randomize, tuned


@pytest.fixture
def networks():
    g = seeded(0, "recheck")
    dense = randomize(fully_connected(), g)
    return dense, tuned(dense, g, size=0.01)


@pytest.fixture
def ball():
    return {"around": torch.randn(5, 5, generator=seeded(1, "recheck")), "radius": 0.01}


@pytest.mark.parametrize(
    "options", [{}, {"norm": 2, "methods": "interval"}, {"rounding": True}]
)
def test_proved_again_from_the_text_alone(options, networks, ball):
    text = sc.certify(*networks, **ball, **options).to_json()
    again = recheck(text, *(copy.deepcopy(m) for m in networks))
    assert again.holds and again.bound == pytest.approx(again.stated, rel=1e-12)
    assert str(again).startswith("holds: proved again")


def test_other_weights_or_another_graph_do_not_hold(networks, ball):
    dense, sparse = networks
    text = sc.certify(dense, sparse, **ball).to_json()
    other = copy.deepcopy(sparse)
    next(other.parameters()).data.view(-1)[0] += 1e-7
    result = recheck(text, dense, other)
    assert not result.holds
    assert result.problems == (
        "the weights of the sparse network are not those certified",
    )


def test_a_bound_that_was_lowered_or_boxes_that_were_changed_are_caught(networks, ball):
    told = json.loads(sc.certify(*networks, **ball).to_json())
    lowered = json.dumps(told | {"bound": told["bound"] * 0.9})
    assert "above" in str(recheck(lowered, *networks))
    boxes = told["boxes"] | {"lo": told["boxes"]["hi"]}
    with pytest.raises(DomainError, match="hash does not fit"):
        recheck(json.dumps(told | {"boxes": boxes}), *networks)


def test_one_literal_changes_the_hash_of_the_graph():
    class Picks(nn.Module):
        def __init__(self, index: list[int]) -> None:
            super().__init__()
            self.a, self.index = nn.Linear(3, 4), index

        def forward(self, x):
            return torch.relu(self.a(x))[:, self.index]

    hashes = []
    for index in ([0, 1], [2, 3]):
        model = Picks(index)
        told = json.loads(
            sc.certify(model, model, around=torch.zeros(1, 3), radius=0.1).to_json()
        )
        hashes.append(told["networks"]["dense"]["graph"])
    assert hashes[0] != hashes[1]


def test_the_verdict_in_words(networks, ball):
    dense, sparse = networks
    close = sc.certify(dense, sparse, around=ball["around"], radius=0.0)
    kept = int(close.certified(ball["around"]).sum())
    assert close.verdict.startswith(f"certifies {kept} of 5")
    far = sc.certify(dense, sparse, around=ball["around"], radius=1e6)
    assert far.verdict.startswith("vacuous: the bound")
    assert (
        "agree everywhere" in sc.certify(dense, dense, rounding=False, **ball).verdict
    )


def test_what_is_no_certificate_is_refused(networks, ball):
    for text in ("not json", "[]", "{}"):
        with pytest.raises(ArgumentError, match="this is no certificate"):
            recheck(text, *networks)
    seen = sc.certify(*networks, data=torch.randn(40, 5)).to_json()
    with pytest.raises(ArgumentError, match="statistical"):
        recheck(seen, *networks)


def test_sizes_to_compare_with(networks, ball):
    told = json.loads(sc.certify(*networks, **ball).to_json())
    with torch.no_grad():
        outputs = networks[0].double()(ball["around"].double())
    top = outputs.topk(2, dim=1).values
    assert math.isclose(told["smallest_margin"], float((top[:, 0] - top[:, 1]).min()))
    assert math.isclose(told["output_range"], float(outputs.max() - outputs.min()))
    assert set(told["versions"]) == {"secateurs", "torch", "python"}
