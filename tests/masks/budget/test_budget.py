"""Reading budgets, sharing them out, and the threshold behind the count."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secateurs.errors import ArgumentError
from secateurs.masks import SCOPES, Demand, select, share
from secateurs.masks.budget import exact_density

LENET = {"fc1": (300, 784), "fc2": (100, 300), "fc3": (10, 100)}


def demand(shapes, keep, *, capacity=None, floor=1) -> Demand:
    sizes = {name: torch.Size(shape).numel() for name, shape in shapes.items()}
    capacity = sizes if capacity is None else capacity
    return Demand(
        density=Fraction(keep, sum(sizes.values())),
        keep=keep,
        shapes=shapes,
        capacity=capacity,
        floor={name: min(floor, capacity[name]) for name in shapes},
        scores={},
    )


@pytest.mark.parametrize("value", [0.1, 0.3, 0.7, 0.9, 0.98, 0.999])
def test_sparsity_and_density_are_exact_decimals(value):
    assert (
        exact_density({"sparsity": value})
        == 1 - exact_density({"density": value})
        == 1 - Fraction(str(value))
    )
    assert (
        exact_density({"compression": 100})
        == Fraction(1, 100)
        == exact_density({"compression": Fraction(100)})
    )
    assert exact_density({}) is None


def test_erk_densities_are_in_proportion():
    counts = SCOPES["erk"](demand(LENET, 26_620))
    expected = {name: sum(shape) / (shape[0] * shape[1]) for name, shape in LENET.items()}
    # The head, at (10 + 100) / 1000, would be denser than full: it is dense.
    scale = (26_620 - 1000) / (1084 + 400)
    assert counts["fc3"] == 1000 and sum(counts.values()) == 26_620
    assert abs(counts["fc1"] - scale * expected["fc1"] * 235_200) < 1
    assert abs(counts["fc2"] - scale * expected["fc2"] * 30_000) < 1


def test_uniform_is_the_same_density_with_an_exact_total():
    counts = SCOPES["uniform"](demand({"a": (3,), "b": (3,), "c": (4,)}, 5))
    assert counts == {"a": 2, "b": 1, "c": 2}, (
        "1.5, 1.5 and 2: the earlier of equal remainders gets the entry"
    )


@given(
    data=st.lists(
        st.tuples(st.integers(1, 50), st.integers(0, 50), st.floats(0, 10)),
        min_size=1,
        max_size=6,
    ),
    part=st.fractions(0, 1),
    floor=st.integers(0, 3),
)
def test_share_meets_the_total_within_floors_and_capacities(data, part, floor):
    shapes = {str(i): (size,) for i, (size, _, _) in enumerate(data)}
    capacity = {str(i): min(size, room) for i, (size, room, _) in enumerate(data)}
    least = sum(min(floor, room) for room in capacity.values())
    keep = least + int(part * (sum(capacity.values()) - least))
    asked = demand(shapes, keep, capacity=capacity, floor=floor)
    counts = share({str(i): raw for i, (_, _, raw) in enumerate(data)}, asked)
    assert sum(counts.values()) == keep
    assert all(asked.floor[name] <= count <= capacity[name] for name, count in counts.items())


@given(
    values=st.lists(st.floats(0, 1e30), min_size=2, max_size=8),
    seed=st.integers(0, 9),
)
def test_share_grows_with_the_budget(values, seed):
    """A larger budget never takes an ideal share away; rounding may move one entry."""
    shapes = {str(i): (i + 3, 5) for i in range(len(values))}
    raw = {str(i): value + 1e-3 for i, value in enumerate(values)}
    total = sum(5 * (i + 3) for i in range(len(values)))
    few, many = (
        share(raw, demand(shapes, keep)) for keep in (total // 3 + seed, total // 2 + seed)
    )
    assert all(many[name] >= few[name] - 1 for name in shapes)


def test_proportional_gives_each_parameter_what_a_draw_over_all_takes_there():
    scores = {"a": torch.tensor([9.0, 1.0, 1.0, 1.0]), "b": torch.tensor([1.0, 1.0, 0.0, -5.0])}
    # One entry is certain, the other three of the four are spread over five of score 1.
    masks = select(scores, density=0.5, scope="proportional")
    assert {name: int(mask.sum()) for name, mask in masks.items()} == {"a": 3, "b": 1}
    # By size −5 counts: 9 and 5 are certain, two entries for five of score 1.
    masks = select(scores, density=0.5, scope="proportional", absolute=True)
    assert {name: int(mask.sum()) for name, mask in masks.items()} == {"a": 2, "b": 2}
    within = {"a": torch.tensor([False, False, True, True])}
    masks = select(scores, density=0.5, scope="proportional", within=within)
    assert not (masks["a"] & ~within["a"]).any()


def test_a_density_may_ask_for_all_that_earlier_masks_left():
    scores, within = {"a": torch.rand(8) + 1}, {"a": torch.arange(8) < 4}
    masks = select(scores, scope={"a": 0.5}, within=within)
    assert torch.equal(masks["a"], within["a"])
    with pytest.raises(ArgumentError, match="5 entries requested and 4 that may be kept"):
        select(scores, scope={"a": 0.625}, within=within)
