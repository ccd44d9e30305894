"""Patterns: N:M, blocks, groups, and what they refuse."""

from itertools import combinations

import pytest
import torch

from masks.choices import TOTAL, generator, run
from masks.grid import (
    kept,
    obeys,
    scores,
)
from secateurs.errors import ArgumentError, PatternError
from secateurs.masks import NM, Block, select


def test_nm_is_the_best_choice_of_its_count():
    """Against all masks of the pattern and the count: a truncated partition matroid, greedy is
    optimal.
    """
    for seed in range(4):
        score = torch.rand(2, 8, generator=generator(seed), dtype=torch.float64)
        best = {}
        for picked in combinations(range(16), 5):
            mask = torch.zeros(16, dtype=torch.bool)
            mask[list(picked)] = True
            if obeys(mask.view(2, 8), "1:2"):
                best[score.flatten()[mask].sum().item()] = mask.view(2, 8)
        assert torch.equal(
            select({"w": score}, density=5 / 16, pattern=NM(1, 2))["w"],
            best[max(best)],
        )


def test_nm_without_a_budget_keeps_n_of_every_m():
    masks = select(scores(), pattern="2:4")
    assert all(bool((NM(2, 4).runs(mask).sum(1) == 2).all()) for mask in masks.values())
    assert kept(run(pattern="2:4", how="sample")) * 2 == TOTAL


def test_nm_runs_along_the_inputs():
    score = torch.zeros(1, 4, 1, 2)
    score[0, :, 0, 0] = torch.tensor([4.0, 1.0, 3.0, 2.0])
    score[0, :, 0, 1] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert select({"w": score}, pattern="2:4")["w"][0, :, 0].T.int().tolist() == [
        [1, 0, 1, 0],
        [0, 0, 1, 1],
    ]


def test_blocks_are_tiles_of_the_matrix():
    score = torch.zeros(4, 6)
    score[2:, 3:] = 1
    assert torch.equal(select({"w": score}, density=0.25, pattern=Block(2, 3))["w"], score.bool())


def test_groups_take_the_nearest_reachable_count():
    given = {"w": torch.rand(4, 10)}
    counts = [
        kept(select(given, density=d, pattern="filter", floor=0))
        for d in (0.1, 0.12, 0.125, 0.13, 0.4)
    ]
    assert counts == [0, 0, 0, 0, 20], (
        "4 and 5 of 40 are as near to 0 as to 10 or nearer; 16 is nearer to 20"
    )


def test_groups_partly_pruned_before_count_what_is_left():
    score = torch.tensor([[1.0, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]])
    within = {"w": torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]]).bool()}
    assert select({"w": score}, density=1 / 12, pattern="filter", within=within)["w"].sum(
        1
    ).tolist() == [0, 1, 0]
    assert select({"w": score}, density=5 / 12, pattern="filter", within=within)["w"].sum(
        1
    ).tolist() == [4, 1, 0]


def test_patterns_name_every_misfit_and_the_way_out():
    given = {
        "conv": torch.rand(4, 4, 3, 3),
        "fc": torch.rand(4, 4),
        "bias": torch.rand(4),
    }
    with pytest.raises(
        PatternError,
        match=r"fit 2 of 3 .*'fc' \(4, 4\) has no spatial kernel; 'bias' .*where=",
    ):
        select(given, density=0.5, pattern="kernel")


@pytest.mark.parametrize("odd", [["2:4"], ("filter",), 3, None, object()])
def test_what_is_no_pattern_is_refused(odd):
    with pytest.raises(ArgumentError, match="neither a pattern nor the name of one"):
        select({"w": torch.rand(4, 4)}, density=0.5, pattern=odd)
