import pytest
import torch

from secateurs.optim.keep import Keep, clear_all_

VALUES = (float("nan"), float("inf"), -float("inf"), -0.0, -1e-30, 1e30, 5e-324, 0.0)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
    ],
)
@pytest.mark.parametrize("density", [0.0, 0.5, 1.0])
def test_dropped_entries_are_plus_zero_and_kept_ones_keep_their_bits(dtype, density):
    tensor = torch.tensor([VALUES] * 6, dtype=torch.float64).to(dtype)
    mask = torch.rand(6, 8) < density
    bits = tensor.view(torch.uint8).view(6, 8, -1).clone()
    Keep(mask, like=tensor).clear_(tensor)
    after = tensor.view(torch.uint8).view(6, 8, -1)
    assert torch.equal(after[mask], bits[mask])
    assert not after[~mask].any()


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 1, 1, 1), (7,), (), (0, 3)])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "transposed", "sliced"])
def test_memory_layouts_agree_with_indexing(shape, layout):
    tensor = torch.randn(shape)
    if layout == "channels_last" and len(shape) == 4:
        tensor = tensor.contiguous(memory_format=torch.channels_last)
    elif layout == "transposed" and len(shape) > 1:
        tensor = torch.randn(shape[::-1]).permute(*reversed(range(len(shape))))
    elif layout == "sliced" and len(shape) > 0:
        tensor = torch.randn(shape[0] * 2, *shape[1:])[::2]
    mask = torch.rand(shape) < 0.5
    expected = tensor.clone()
    expected[~mask] = 0
    keep = Keep(mask, like=tensor)
    keep.clear_(tensor)
    assert torch.equal(tensor, expected)
    assert torch.equal(keep.mask(), mask) and keep.drops == (not mask.all())


def test_state_of_other_shapes_scalars_and_integers_is_left_alone():
    parameter = torch.randn(2, 3)
    keep = Keep(torch.zeros(2, 3) > 0, like=parameter)
    state = {
        "momentum": torch.ones(2, 3),
        "nested": [
            torch.ones(2, 3),
            {"deep": (torch.ones(2, 3, dtype=torch.float64),)},
        ],
        "step": torch.tensor(7.0),
        "row": torch.ones(2, 1),
        "codes": torch.ones(2, 3, dtype=torch.uint8),
        "word": "left alone",
    }
    clear_all_(keep.state(state, parameter))
    assert (
        not state["momentum"].any()
        and not state["nested"][0].any()
        and not state["nested"][1]["deep"][0].any()
    )
    assert state["step"] == 7 and state["row"].all() and state["codes"].all()


def test_single_number_parameter_does_not_lose_its_step_count():
    parameter = torch.tensor(3.0, requires_grad=True)
    optimizer = torch.optim.Adam([parameter])
    parameter.grad = torch.tensor(1.0)
    optimizer.step()
    keep = Keep(torch.tensor(False), like=parameter)
    clear_all_(keep.state(optimizer.state[parameter], parameter))
    assert optimizer.state[parameter]["step"] == 1
