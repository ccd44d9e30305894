"""Groups of weights: their shapes, and what has none."""

import pytest
import torch

from secateurs.errors import PatternError
from secateurs.optim.groupings import GROUPINGS, grouping

SHAPE = (4, 8, 3, 3)
COUNTS = {"neuron": 4, "channel": 8, "kernel": 32, "block": 72, "block:2": 144}


@pytest.mark.parametrize("name", COUNTS)
def test_every_weight_is_in_one_group_and_all_groups_are_of_one_size(name):
    found = grouping(name, SHAPE)
    ones = found.total(torch.ones(SHAPE))
    assert ones.shape == found.shape and ones.numel() == COUNTS[name]
    assert (ones == 4 * 8 * 9 / COUNTS[name]).all()
    numbers = torch.arange(ones.numel(), dtype=torch.float32).reshape(ones.shape)
    members = found.spread(numbers, torch.empty(SHAPE))
    assert members.shape == SHAPE
    assert torch.equal(found.total(members), numbers * ones)
    assert {name.partition(":")[0] for name in COUNTS} == set(GROUPINGS.names())


def test_members_of_a_group():
    numbered = {name: grouping(name, SHAPE) for name in COUNTS}
    spread = {
        name: found.spread(torch.arange(COUNTS[name]).reshape(found.shape), torch.empty(SHAPE))
        for name, found in numbered.items()
    }
    assert torch.equal(spread["neuron"], torch.arange(4).reshape(4, 1, 1, 1).expand(SHAPE))
    assert torch.equal(spread["channel"], torch.arange(8).reshape(8, 1, 1).expand(SHAPE))
    assert torch.equal(spread["kernel"], torch.arange(32).reshape(4, 8, 1, 1).expand(SHAPE))
    assert (spread["block"][0, :4, 1, 2] == spread["block"][0, 0, 1, 2]).all()
    assert spread["block"][0, 4, 1, 2] != spread["block"][0, 0, 1, 2]


def test_names_that_mean_no_groups_are_refused():
    for name, message in (
        ("block:x", "block size 'x'"),
        ("block:0", "block size '0'"),
        ("neuron:4", "only blocks have a size.*Use 'neuron'"),
    ):
        with pytest.raises(PatternError, match=message):
            grouping(name, (2, 8))


@pytest.mark.parametrize(
    ("name", "shape"),
    [("neuron", (5,)), ("kernel", (5, 4)), ("neuron", (5, 0)), ("block:3", (2, 8))],
)
def test_shapes_without_groups(name, shape):
    assert grouping(name, shape) is None
