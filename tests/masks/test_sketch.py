"""Sketches: unbiased, with the masks of `select`."""

import pytest
import torch

from masks.draws import generator
from masks.grid import scores
from secateurs.errors import ArgumentError
from secateurs.masks import NM, SELECTIONS, select, sketch


@pytest.mark.parametrize("how", [name for name in SELECTIONS.names() if SELECTIONS[name].draw])
def test_sketch_is_unbiased_for_groups_and_runs(how):
    """400 sketches by filters, and by 2:4; each mean within 6.5 standard errors of 1."""
    for pattern, shape in (("filter", (6, 2)), (NM(2, 4), (2, 4))):
        score = torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)
        g, found = generator(), []
        for _ in range(400):
            drawn = sketch(
                {"w": score},
                density=0.5,
                pattern=pattern,
                how=how,
                scope="layer",
                generator=g,
            )
            assert torch.equal(drawn.weights["w"] > 0, drawn.masks["w"]) and not drawn.biased
            found.append(drawn.weights["w"].double())
        weights = torch.stack(found)
        error = weights.std(0) / 400**0.5
        assert bool(((weights.mean(0) - 1).abs() <= 6.5 * error + 1e-12).all())


def test_sketch_says_where_it_is_biased():
    score = torch.tensor([[8.0, 7, 6, 5, 4, 3, 2, 1]])
    assert sketch({"w": score}, density=0.25, pattern="2:4").biased == ("w",)
    assert sketch({"w": score}, density=0.25).biased == ()
    within = {"w": score > 4}
    assert sketch({"w": score}, density=0.25, within=within).biased == ("w",)
    both = {"w": score, "v": score / 100}
    assert sketch(both, density=0.25, floor=0).biased == ("v",)
    assert sketch(both, density=0.25).biased == ()


def test_sketch_and_select_draw_the_same_masks():
    for how in SELECTIONS.names():
        if SELECTIONS[how].draw:
            drawn = sketch(scores(), density=0.2, how=how, generator=generator())
            masks = select(scores(), density=0.2, how=how, generator=generator())
            assert all(torch.equal(drawn.masks[name], masks[name]) for name in masks)


def test_sketch_by_threshold_is_refused():
    with pytest.raises(
        ArgumentError,
        match="how='topk' draws nothing.*sample, systematic, priority, replacement",
    ):
        sketch(scores(), density=0.5, how="topk")


def test_half_precision_scores_have_full_precision_weights():
    drawn = sketch(
        {"w": torch.tensor([1.0, 1e-4]).bfloat16()},
        density=0.5,
        generator=generator(),
    )
    assert drawn.weights["w"].dtype == torch.float32
