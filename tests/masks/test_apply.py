"""apply_, check and the sparsity report."""

import pytest
import torch
from torch import nn

from masks.choices import Tied
from secateurs.base.bits import clear_
from secateurs.errors import MaskError
from secateurs.masks import apply_, check


def test_apply_leaves_exact_zeros_and_nothing_else():
    model = Tied()
    with torch.no_grad():
        model.first.weight[0, 0], model.first.weight[0, 1] = torch.nan, -1.0
    mask, before = torch.rand(4, 4) < 0.5, model.first.weight.detach().clone()
    mask[0, :2] = False
    conv = torch.rand(3, 2, 3, 3) < 0.5
    apply_(model, {"first.weight": mask, "conv.weight": conv})
    assert torch.equal(model.first.weight[mask], before[mask])
    assert torch.equal(model.conv.weight != 0, conv)
    dropped = model.first.weight[~mask]
    assert bool((dropped == 0).all()) and not bool(torch.signbit(dropped).any())
    assert model.second.weight is model.first.weight


def test_apply_to_a_frozen_parameter():
    model = nn.Linear(2, 2).requires_grad_(False)
    apply_(model, {"weight": torch.eye(2).bool()})
    assert int(model.weight.count_nonzero()) == 2


def test_check_lists_everything_and_apply_changes_nothing():
    model = nn.ModuleDict(
        {
            "a": nn.Linear(2, 2),
            "lazy": nn.LazyLinear(2),
            "meta": nn.Linear(2, 2, device="meta"),
        }
    )
    model["tied"] = nn.Linear(2, 2)
    model["tied"].weight = model["a"].weight
    before = model["a"].weight.detach().clone()
    square = torch.zeros(2, 2, dtype=torch.bool)
    masks = {
        "a.weight": square,
        "a.wieght": square,
        "a.bias": torch.ones(2),
        "tied.weight": square,
    }
    masks |= {
        "lazy.weight": square,
        "meta.weight": square,
        "tied.bias": torch.zeros(3, dtype=torch.bool),
    }
    with pytest.raises(MaskError) as caught:
        apply_(model, masks)
    for text in (
        "6 of 7 masks do not fit ModuleDict",
        "no parameter 'a.wieght'. Did you mean 'a.weight'",
        "'a.bias' has a mask of torch.float32",
        "'tied.weight' is the parameter 'a.weight' under another name",
        "'lazy.weight' is lazy",
        "'meta.weight' is on the meta device",
        "'tied.bias' has shape (2,), but its mask has shape (3,)",
    ):
        assert text in str(caught.value)
    assert torch.equal(model["a"].weight, before)
    with pytest.raises(MaskError, match="meta device"):
        check(model, {"a.weight": square.to("meta")})


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex128],
)
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_clear_keeps_bits_and_leaves_positive_zeros(dtype, layout):
    values = torch.tensor(
        [[torch.nan, -1.0, -0.0, torch.inf], [1.0, -2.0, -0.0, torch.nan]],
        dtype=dtype,
    )
    tensor = values.clone() if layout == "contiguous" else values.T.contiguous().T
    mask = torch.tensor([[False] * 4, [True] * 4])
    clear_(tensor, mask)
    assert torch.equal(tensor[0], torch.zeros(4, dtype=dtype))
    assert torch.equal(tensor[1][:3], values[1][:3]) and bool(tensor[1, 3].isnan())
    if not dtype.is_complex:
        assert tensor[0].signbit().tolist() == [False] * 4 and bool(tensor[1, 2].signbit())
