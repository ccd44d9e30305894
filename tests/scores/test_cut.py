"""The compiled cut equals the product on the case grid, round after round."""

import pytest
import torch
from torch import nn

from compilers import need
from secateurs.base.bits import write_masked_
from secateurs.scores import Scorer, cut
from secateurs.scores.scorer import Copy

KERNEL = cut.kernel()


@pytest.fixture(autouse=True)
def compiled_everywhere(monkeypatch):
    need(KERNEL)
    monkeypatch.setattr(cut, "FEWEST", 0)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 140_003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_the_product_round_after_round(dtype, size, threads):
    g = torch.Generator().manual_seed(0)
    whole = torch.randn(size, generator=g, dtype=dtype)
    whole[::5], whole[1::7] = 0.0, -0.0
    target, expected, before = (
        whole.clone(),
        torch.empty_like(whole),
        torch.get_num_threads(),
    )
    last = torch.ones(size, dtype=torch.bool)
    torch.set_num_threads(threads)
    try:
        for share in (0.9, 0.2, 0.0, 0.5, 1.0, 0.01):  # masks may grow again
            mask = torch.rand(size, generator=g) < share
            KERNEL(target, whole, mask, last)
            write_masked_(expected, whole, mask)
            bits = torch.int32 if dtype == torch.float32 else torch.int64
            assert torch.equal(target.view(bits), expected.view(bits))
            assert torch.equal(last, mask)
    finally:
        torch.set_num_threads(before)


def test_a_copy_cuts_by_it_and_forgets_masks():
    copy = Copy(nn.Linear(20, 30), ["weight"])
    copy.keep()
    whole, mask = copy.parameters["weight"].detach().clone(), torch.rand(30, 20) > 0.5
    version = copy.parameters["weight"]._version
    copy.cut({"weight": mask})
    assert torch.equal(copy.parameters["weight"], whole * mask)
    assert copy.parameters["weight"]._version > version, "autograd is told"
    copy.cut({})
    assert torch.equal(copy.parameters["weight"], whole)
    copy.cut({"weight": ~mask})
    assert torch.equal(copy.parameters["weight"], whole * ~mask)


def test_a_mask_changed_in_place_is_followed():
    """What a copy was cut by is its own, not the user's tensor."""
    copy = Copy(nn.Linear(20, 30), ["weight"])
    copy.keep()
    whole, mask = copy.parameters["weight"].detach().clone(), torch.rand(30, 20) > 0.5
    for _ in range(3):
        copy.cut({"weight": mask})
        assert torch.equal(copy.parameters["weight"], whole * mask)
        mask.data[::2] ^= True


@pytest.mark.parametrize(
    "layout",
    [
        lambda x: x,
        lambda x: x.t().contiguous().t(),
        lambda x: x[::2],
        lambda x: x.bfloat16(),
    ],
)
def test_layouts_and_dtypes_change_from_round_to_round(layout):
    model = nn.Linear(20, 30, bias=False)
    model.weight = nn.Parameter(layout(model.weight.detach()))
    copy = Copy(model, ["weight"])
    copy.keep()
    whole = copy.parameters["weight"].detach().clone()
    for turned in (False, True, False):
        mask = torch.rand(whole.shape) > 0.5
        copy.cut({"weight": mask.t().contiguous().t() if turned else mask})
        assert torch.equal(copy.parameters["weight"], whole * mask)


def test_scores_are_the_same_without_it(monkeypatch):
    net, masks = (
        nn.Linear(20, 30),
        [{"weight": torch.rand(30, 20) > share} for share in (0.2, 0.9, 0.4)],
    )
    ours = Scorer(net, "synflow", example=torch.zeros(1, 20))
    found = [ours.scores(mask)["weight"] for mask in masks]
    monkeypatch.setattr(cut, "kernel", lambda: None)
    theirs = Scorer(net, "synflow", example=torch.zeros(1, 20))
    assert all(
        torch.equal(a, theirs.scores(mask)["weight"]) for a, mask in zip(found, masks, strict=True)
    )
