"""Laws of `select`, for every scope × pattern × selection there is, and the text of its errors."""

from itertools import product

import pytest
import torch
from hypothesis import given as for_all
from hypothesis import strategies as st

from masks.choices import TOTAL, generator, run
from masks.grid import (
    LAYOUTS,
    PATTERN_NAMES,
    SHAPES,
    equal,
    group_size,
    kept,
    laid_out,
    obeys,
    oracle,
    scores,
)
from secateurs.errors import (
    ArgumentError,
    EmptySelectionError,
    MaskError,
    PatternError,
    ScoreError,
    UnknownNameError,
)
from secateurs.masks import SCOPES, SELECTIONS, select

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
EXACT = [name for name in SELECTIONS.names() if SELECTIONS[name].exact]
# Rows: tests/prune/test_axes.py.
WHOLE = [name for name in SCOPES.names() if name != "row"]
GRID = list(product(WHOLE, PATTERN_NAMES, SELECTIONS.names()))


@pytest.mark.parametrize(("scope", "pattern", "how"), GRID)
@pytest.mark.parametrize("density", [0.125, 0.3, 0.5])
def test_counts_and_shapes_everywhere(scope, pattern, how, density):
    masks = run(density=density, scope=scope, pattern=pattern, how=how)
    hard = run(density=density, scope=scope, pattern=pattern)
    largest_group = max(group_size(pattern, shape) for shape in SHAPES.values())
    for name, mask in masks.items():
        assert obeys(mask, pattern)
        assert mask.dtype == torch.bool and mask.shape == SHAPES[name]
        count, hard_count = int(mask.sum()), int(hard[name].sum())
        assert count == hard_count if SELECTIONS[how].exact else 0 < count <= hard_count
        if scope == "layer":
            size = group_size(pattern, SHAPES[name])
            assert abs(hard_count - round(density * mask.numel())) <= size / 2 or hard_count == size
    if scope != "layer" and largest_group == 1:
        assert kept(hard) == round(density * TOTAL)
    if scope == "global":
        free = run(density=density, pattern=pattern, floor=0)
        assert abs(kept(free) - round(density * TOTAL)) <= largest_group / 2


@pytest.mark.parametrize(("scope", "pattern", "how"), GRID)
def test_the_layout_in_memory_changes_nothing(scope, pattern, how):
    options = {"density": 0.3, "scope": scope, "pattern": pattern, "how": how}
    expected = run(**options)
    for layout in LAYOUTS[1:]:
        assert equal(run(laid_out(scores(), layout), **options), expected), layout


@pytest.mark.parametrize("how", SELECTIONS.names())
@pytest.mark.parametrize("pattern", PATTERN_NAMES)
def test_one_and_two_threads_give_the_same_masks(pattern, how):
    """Large enough that PyTorch does split its operations."""
    g = generator()
    given = {name: torch.rand(16, 64, 6, 6, generator=g) ** 4 for name in "ab"}
    if pattern != "4x4":
        given["one filter"] = torch.rand(1, 64, 32, 32, generator=g)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            found.append(run(given, density=0.2, pattern=pattern, how=how))
        finally:
            torch.set_num_threads(1)
    assert equal(*found)


@pytest.mark.parametrize("how", EXACT)
@pytest.mark.parametrize("pattern", PATTERN_NAMES)
@pytest.mark.parametrize("scope", WHOLE)
def test_rounds_within_earlier_masks_are_exact(scope, pattern, how):
    masks = None
    for step in range(1, 6):
        density = 0.5 ** (step / 2) * 0.6
        earlier = masks
        masks = run(
            scores(seed=step),
            density=density,
            scope=scope,
            pattern=pattern,
            how=how,
            within=earlier,
        )
        if earlier is not None:
            assert all(bool((earlier[name] | ~masks[name]).all()) for name in masks)
        exact = max(group_size(pattern, shape) for shape in SHAPES.values()) == 1
        if exact and scope != "layer":
            assert kept(masks) == round(density * TOTAL)


@pytest.mark.parametrize("density", [0.0, 0.01, 0.1, 0.5, 0.77, 1.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_global_topk_equals_the_sort(dtype, density):
    given = scores(dtype)
    assert equal(select(given, density=density, floor=0), oracle(given, round(density * TOTAL)))


def test_mixed_dtypes_compare_by_value():
    given = {
        str(dtype): score.to(dtype) - 0.5
        for dtype, score in zip(DTYPES, [*scores().values()] * 2, strict=False)
    }
    total = sum(score.numel() for score in given.values())
    assert equal(select(given, density=0.3, floor=0), oracle(given, round(0.3 * total)))


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1.0, 1e10, 1e30])
@pytest.mark.parametrize("how", SELECTIONS.names())
def test_the_scale_of_the_scores_does_not_matter(scale, how):
    # A power of two keeps the order and every ratio exact.
    factor = 2.0 ** round(torch.log2(torch.tensor(scale)).item())
    scaled = {name: score.double() * factor for name, score in scores().items()}
    base = {name: score.double() for name, score in scores().items()}
    found, expected = (
        run(scaled, sparsity=0.8, how=how),
        run(base, sparsity=0.8, how=how),
    )
    # Draws take logarithms: the last bit of log(factor · score) may decide a race once in 10**13.
    assert kept(found) == kept(expected) and equal(found, expected)


@for_all(
    values=st.lists(
        st.sampled_from([-2.0, -0.0, 0.0, 1e-30, 0.5, 0.5, 1.0, 1e30]),
        min_size=1,
        max_size=40,
    ),
    cut=st.integers(0, 40),
    count=st.integers(0, 40),
    dtype=st.sampled_from([torch.bfloat16, torch.float32, torch.float64]),
)
def test_ties_signs_and_zeros_against_the_sort(values, cut, count, dtype):
    tensor = torch.tensor(values, dtype=dtype)
    given = {"a": tensor[:cut], "b": tensor[cut:]}
    density = min(count, len(values)) / len(values)
    expected = round(density * len(values))
    assert equal(select(given, density=density, floor=0), oracle(given, expected))


def test_equal_scores_keep_the_exact_count_and_the_first():
    masks = select({"a": torch.ones(3, 3), "b": torch.ones(4)}, density=6 / 13, floor=0)
    assert masks["a"].flatten().tolist() == [True] * 6 + [False] * 3
    assert not masks["b"].any()


def test_counts_round_half_to_even_in_decimals():
    def counts(**options):
        return [
            int(m.sum())
            for m in select(
                {"a": torch.rand(5), "b": torch.rand(15)}, scope="layer", **options
            ).values()
        ]

    assert counts(density=0.5) == [2, 8]
    assert counts(sparsity=0.9) == [1, 2], (
        "1.5 entries round to 2, though 1 - 0.9 is below 0.1 in floats"
    )
    assert counts(compression=2) == [2, 8]


def test_frozen_value():
    """What version 0.1 chose; a change of rounding, ties or draws shows here."""
    given = {"w": torch.arange(1.0, 13.0).reshape(3, 4)}
    found = {
        how: run(given, density=0.5, how=how)["w"].int().flatten().tolist()
        for how in SELECTIONS.names()
    }
    assert found == FROZEN


FROZEN = {
    "topk": [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1],
    "sample": [0, 0, 0, 1, 1, 0, 1, 0, 0, 1, 1, 1],
    "systematic": [0, 1, 0, 0, 0, 1, 0, 1, 1, 1, 0, 1],
    "priority": [0, 0, 0, 0, 0, 1, 0, 1, 1, 1, 1, 1],
    "replacement": [0, 0, 0, 0, 0, 1, 1, 1, 0, 1, 0, 1],
}


@pytest.mark.parametrize("how", SELECTIONS.names())
def test_no_layer_loses_its_last_entry_unless_asked(how):
    given = {
        "big": torch.rand(100) + 1,
        "small": torch.rand(4),
        "other": torch.rand(6) / 10,
    }
    masks = run(given, density=0.25, how=how)
    assert kept({"small": masks["small"]}) == kept({"other": masks["other"]}) == 1
    assert kept(masks) <= 28
    assert not run(given, density=0.25, floor=0, how=how)["small"].any()
    assert int(run(given, density=0.25, floor=3)["small"].sum()) == 3
    assert int(run(given, density=0.25, floor=0.2)["other"].sum()) == 2, (
        "1.2 entries at least are 2"
    )
    assert kept(run(given, density=0.25, floor=0.2)) == 28
    assert kept(run(given, density=0)) == 0, "asking for nothing is asking"


def test_floor_for_groups_and_what_they_cost():
    given = {"big": torch.rand(10, 5) + 1, "small": torch.rand(3, 4)}
    masks = select(given, density=0.2, pattern="filter")
    assert int(masks["small"].sum()) == 4
    assert kept(masks) == 14, "12.4 of 62 entries: 4 for the floor, 10 of the 8 left in steps of 5"


def test_all_zero_layer_and_one_channel():
    masks = select({"zero": torch.zeros(4, 4), "one": torch.rand(1, 1)}, density=0.5)
    assert kept(masks) == 8 and bool(masks["one"].all())


def test_an_empty_tensor_is_no_obstacle():
    masks = select({"none": torch.rand(0, 4), "some": torch.rand(4, 4)}, density=0.5)
    assert masks["none"].shape == (0, 4) and kept(masks) == 8


def test_scores_may_need_gradients_and_stay_untouched():
    given = {"w": torch.rand(4, 4, requires_grad=True)}
    before = given["w"].detach().clone()
    mask = select(given, density=0.5)["w"]
    assert not mask.requires_grad and torch.equal(given["w"].detach(), before)


def test_mapping_of_densities():
    masks = select(scores(), scope={"*": 0.25, "b": 0.5, "c": 0.0})
    assert [int(mask.sum()) for mask in masks.values()] == [72, 64, 0]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({}, ArgumentError, "give sparsity=, density= or compression="),
        (
            {"sparsity": 0.5, "density": 0.5},
            ArgumentError,
            "sparsity=0.5, density=0.5",
        ),
        ({"sparsity": 1.2}, ArgumentError, "sparsity=1.2 is not between 0 and 1"),
        (
            {"sparsity": 1},
            ArgumentError,
            "sparsity=1 drops every weight.*=0.01.*density=0",
        ),
        ({"sparsity": 1.0}, ArgumentError, "sparsity=1.0 drops every weight"),
        ({"sparsity": 90}, ArgumentError, "use compression=n"),
        ({"sparsity": True}, ArgumentError, "sparsity=True is not a finite number"),
        ({"sparsity": "0.5"}, ArgumentError, "sparsity='0.5' is not a finite number"),
        ({"compression": 0.5}, ArgumentError, "compression=0.5 is below 1"),
        (
            {"density": float("nan")},
            ArgumentError,
            "density=nan is not a finite number",
        ),
        (
            {"density": 0.5, "scope": "golbal"},
            UnknownNameError,
            "Did you mean 'global'",
        ),
        ({"density": 0.5, "how": "topkk"}, UnknownNameError, "Did you mean 'topk'"),
        (
            {"density": 0.5, "pattern": "kernal"},
            UnknownNameError,
            "Did you mean 'kernel'",
        ),
        (
            {"density": 0.5, "pattern": "5:4"},
            ArgumentError,
            "N must be between 1 and M",
        ),
        ({"density": 0.5, "pattern": "0x4"}, ArgumentError, "has no entries"),
        (
            {"density": 0.5, "pattern": "3:7"},
            PatternError,
            r"'a' \(8, 4, 3, 3\) has 4 inputs, which 7 does not",
        ),
        (
            {"density": 0.5, "pattern": "5x5"},
            PatternError,
            r"fit 3 of 3 parameters: 'a' \(8, 4, 3, 3\) is a 8 x 36",
        ),
        (
            {"density": 0.6, "pattern": "2:4"},
            ArgumentError,
            r"leave only 280 \(density 0.5\)",
        ),
        ({"density": 0.5, "floor": -1}, ArgumentError, "floor=-1 is neither"),
        (
            {"density": 0.5, "within": {"aa": torch.ones(1)}},
            MaskError,
            "Did you mean 'a'",
        ),
        (
            {"density": 0.5, "within": {"a": torch.ones(8, 4, 3, 3)}},
            MaskError,
            "'a' has a mask of torch.float32 values",
        ),
        (
            {"density": 0.5, "weights": {"a": torch.ones(3)}},
            MaskError,
            r"weights= .*'a' has shape \(3,\)",
        ),
        ({"density": 0.003}, ArgumentError, "2 entries cannot keep the floor of 3"),
        (
            {"density": 0.5, "scope": {"*": 0.5}},
            ArgumentError,
            "already gives a density per parameter",
        ),
        (
            {"scope": {"a": 0.5, "bb": 0.1}},
            ArgumentError,
            "no density for 'b'; no density for 'c'; .*'bb'",
        ),
        ({"scope": {"*": 1.5}}, ArgumentError, "density=1.5 is not between"),
        (
            {"scope": {"*": 0.9}, "pattern": "2:4"},
            ArgumentError,
            "'a' has 259 entries requested and 144 that may",
        ),
    ],
)
def test_errors(options, error, text):
    with pytest.raises(error, match=text):
        select(scores(), **options)


def test_a_layer_that_within_has_emptied_cannot_be_asked_again():
    within = {"a": torch.zeros(SHAPES["a"], dtype=torch.bool)}
    with pytest.raises(ArgumentError, match="'a' 86 of 0.*scope='uniform'"):
        select(scores(), density=0.3, scope="layer", within=within)
    masks = select(scores(), density=0.25, scope="uniform", within=within)
    assert kept(masks) == round(0.25 * TOTAL) and not masks["a"].any()


def test_bad_scores_are_named_together():
    bad = {
        "nan": torch.tensor([1.0, torch.nan]),
        "inf": torch.tensor([torch.inf]),
        "int": torch.ones(2).int(),
    }
    bad |= {
        "wave": torch.ones(2, dtype=torch.cfloat),
        "meta": torch.ones(2, device="meta"),
        "list": [1.0],
    }
    with pytest.raises(ScoreError) as caught:
        select({**scores(), **bad}, density=0.5)
    expected = (
        "6 of 9",
        "'nan' has 1 NaN or infinite values of 2",
        "'inf' has 1 NaN",
        "'int' has torch.int32",
        "'wave'",
    )
    for text in (*expected, "'meta' is on the meta device", "'list' is a list"):
        assert text in str(caught.value)


@pytest.mark.parametrize("how", [name for name in SELECTIONS.names() if SELECTIONS[name].draw])
def test_negative_scores_are_no_probabilities(how):
    with pytest.raises(ScoreError, match=r"'w' has negative values \(down to -1\).*how='topk'"):
        select({"w": torch.tensor([-1.0, 2.0])}, density=0.5, how=how)
    assert select({"w": torch.tensor([-1.0, 2.0])}, density=0.5)["w"].tolist() == [
        False,
        True,
    ]


@pytest.mark.parametrize("nothing", [{}, {"w": torch.rand(0)}])
def test_nothing_to_select_from(nothing):
    with pytest.raises(EmptySelectionError, match="no scores to select from"):
        select(nothing, density=0.5)


@pytest.mark.parametrize("pattern", PATTERN_NAMES)
@pytest.mark.parametrize("how", SELECTIONS.names())
def test_absolute_is_the_choice_among_magnitudes(pattern, how):
    signed = {name: score - 0.5 for name, score in scores().items()}
    magnitudes = {name: score.abs() for name, score in signed.items()}
    options = {"density": 0.3, "pattern": pattern, "how": how}
    assert equal(run(signed, absolute=True, **options), run(magnitudes, **options))


@pytest.mark.parametrize("high", [0.0, 100.0])
def test_a_parameter_at_its_floor_keeps_it_and_the_others_share_the_rest(high):
    """Whether it would have won or lost the competition."""
    given = {
        "a": torch.rand(10) * 0.1 + high,
        "b": torch.rand(40) + 1,
        "gone": torch.rand(5),
    }
    within = {"a": torch.arange(10) == 7, "gone": torch.zeros(5, dtype=torch.bool)}
    masks = select(given, density=21 / 55, within=within)
    assert torch.equal(masks["a"], within["a"]) and not masks["gone"].any()
    assert torch.equal(masks["b"], given["b"] >= given["b"].sort(descending=True).values[19])
