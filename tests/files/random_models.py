"""Random models for the tests of sparse files: every dtype, many shapes and kinds of sparsity, tied
tensors."""

import torch
from torch import nn

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
OTHERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
COMPLEX = (torch.complex64, torch.complex128)


def random_state(seed):
    """Tensors by name, some of them tied: dense, empty, scattered, with dead rows and columns,
    scalars, odd values."""
    draw = torch.Generator().manual_seed(seed)
    state = {}
    for i in range(_int(draw, 1, 7)):
        tensor = _tensor(draw)
        state[f"block.{i}.weight"] = _thinned(tensor, draw)
    if _int(draw, 0, 3) == 0:
        state["tied.weight"] = state["block.0.weight"]
    return state


class Holder(nn.Module):
    """A module whose buffers are these tensors, so that any dtype can be loaded into it."""

    def __init__(self, state):
        super().__init__()
        for name, value in state.items():
            self.register_buffer(name.replace(".", "_"), value)


def _int(draw, low, high):
    return int(torch.randint(low, high, (), generator=draw))


def _tensor(draw):
    shape = [_int(draw, 0 if _int(draw, 0, 20) == 0 else 1, 24) for _ in range(_int(draw, 0, 5))]
    dtype = (*FLOATS, *FLOATS, *OTHERS, *COMPLEX)[_int(draw, 0, 16)]
    if dtype in OTHERS:
        return torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=draw).to(dtype)
    scale = 10.0 ** _int(draw, -30, 4) if dtype != torch.float16 else 1.0
    values = torch.randn(shape, dtype=torch.float64, generator=draw) * scale
    if dtype in COMPLEX:
        return torch.complex(values, values.flip(0) if values.ndim else values).to(dtype)
    odd = (0.0, -0.0, float("inf"), float("nan"), 5e-324)
    if values.numel() and _int(draw, 0, 4) == 0:
        values.view(-1)[0] = odd[_int(draw, 0, 5)]
    return values.to(dtype)


def _thinned(tensor, draw):
    how, keep = _int(draw, 0, 5), float(torch.rand((), generator=draw)) ** 3
    if how == 0:
        return tensor
    gone = torch.rand(tensor.shape, generator=draw) >= keep
    if how == 1 and tensor.ndim:
        gone |= torch.rand(tensor.shape[0], *[1] * (tensor.ndim - 1), generator=draw) < 0.6
    if how == 2 and tensor.ndim > 1:
        gone |= torch.rand(1, *tensor.shape[1:], generator=draw) < 0.6
    return tensor.masked_fill(gone, 0)
