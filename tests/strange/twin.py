"""The network a case really is, written without anything strange: what its layer does to channels
is found by calling it, and put in its place as a constant matrix.
"""

import copy

import torch
from torch import Tensor, nn

from strange.kinds import Strange
from strange.networks import Case

_BATCHES = (2, 5, 1, 2)


class Plain(nn.Module):
    """h ↦ A h + b over the channels."""

    def __init__(self, matrix: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.register_buffer("matrix", matrix)
        self.register_buffer("shift", shift)

    def forward(self, h: Tensor) -> Tensor:
        if h.ndim == 2:
            return nn.functional.linear(h, self.matrix, self.shift)
        return nn.functional.conv2d(h, self.matrix[..., None, None], self.shift)


class _NoTwin(Exception):
    pass


def twin(case: Case, *, other: bool) -> nn.Module | None:
    """The plain network, or None where the layer is not a fixed affine map of the channels."""
    model = case.build(other=other)
    for module in [*model.modules()]:
        for name, child in [*module.named_children()]:
            if isinstance(child, Strange):
                try:
                    setattr(module, name, _plain(child, case))
                except _NoTwin:
                    return None
                return model
    return None


def _plain(layer: nn.Module, case: Case) -> Plain:
    inside = (4, 4) if case.shape == "image" and case.position != "output" else ()
    channels = layer.channels
    if case.called:
        layer(torch.zeros(1, channels, *inside))
    first = None
    for mode in (torch.no_grad, torch.enable_grad):
        # A layer with a memory is asked in a row, like a user asks it.
        asked = copy.deepcopy(layer)
        for batch in _BATCHES:
            with mode():
                found = _matrix(asked, channels, inside, batch)
            first = found if first is None else first
            if not all(torch.equal(a, b) for a, b in zip(first, found, strict=True)):
                raise _NoTwin
    matrix, shift = first
    # Paths that cancel are counted by a path norm, and a matrix does not show them.
    if bool((matrix < 0).any()) and bool(((matrix != 0).sum(1) > 1).any()):
        raise _NoTwin
    return Plain(matrix, shift)


def _matrix(
    layer: nn.Module, channels: int, inside: tuple[int, ...], batch: int
) -> tuple[Tensor, Tensor]:
    def answer(h: Tensor) -> Tensor:
        torch.manual_seed(0)
        return layer(h).detach()

    zero = torch.zeros(batch, channels, *inside)
    shift = answer(zero).reshape(batch, -1, max(1, torch.Size(inside).numel()))
    shift = shift[0, :, 0]
    columns = []
    for channel in range(channels):
        h = zero.clone()
        h[:, channel] = 1.0
        out = answer(h)
        columns.append(out.reshape(batch, len(shift), -1)[0, :, 0] - shift)
    matrix = torch.stack(columns, 1)
    h = torch.randn(zero.shape, generator=torch.Generator().manual_seed(batch))
    wanted = Plain(matrix, shift)(h)
    out = answer(h)
    if out.shape != wanted.shape or not torch.allclose(out, wanted, atol=1e-5):
        raise _NoTwin
    return matrix, shift
