"""Windows of maps, one for every row of a pass, and the transposed window sum.

Values on windows are (channels, height, width, directions, rows). The rows come last, so that they
lie side by side in memory: the windows are small and the rows are many.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from secateurs.graph.primitives import Sliding
from secateurs.paths.certificates.flows.patches.cones import Map, Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """One row per box and neuron: the box, the channel, and the position on the map."""

    box: Tensor
    channel: Tensor
    at: tuple[Tensor, Tensor]

    def __len__(self) -> int:
        return len(self.box)


def rows_of(box: Tensor, neuron: Tensor, shape: Map) -> Rows:
    """Rows from flat numbers of neurons on a map."""
    _, height, width = shape
    position = neuron % (height * width)
    return Rows(
        box=box,
        channel=neuron // (height * width),
        at=(position // width, position % width),
    )


def windows(
    maps: Sequence[Tensor], shape: Map, place: Place, rows: Rows
) -> list[Tensor]:
    """The window of each row in each map (boxes, ...), zero outside of the map; (channels, height,
    width, 1, rows).
    """
    boxes = int(rows.box.max()) + 1
    stack = torch.cat([_boxed(m, boxes).reshape(boxes, *shape) for m in maps], dim=1)
    height, width = shape[1:]
    sides = [_margins(place, i, (height, width)[i], rows) for i in range(2)]
    (top, bottom), (left, right) = sides
    padded = F.pad(stack, (left, right, top, bottom)).transpose(0, 1)
    across = width + left + right
    down = height + top + bottom
    ys, xs = (
        rows.at[i] * place.step[i] + place.start[i] + sides[i][0] for i in range(2)
    )
    first = (rows.box * down + ys) * across + xs
    inside = (
        torch.arange(place.size[0], device=first.device).unsqueeze(1) * across
        + torch.arange(place.size[1], device=first.device)
    ).flatten()
    index = (inside.unsqueeze(1) + first).flatten()
    found = padded.reshape(padded.shape[0], -1).index_select(1, index)
    shaped = found.reshape(-1, *place.size, 1, len(rows))
    return list(torch.split(shaped, shape[0]))


def _boxed(value: Tensor, boxes: int) -> Tensor:
    """As many boxes as rows speak of; what is the same in all of them comes once."""
    return value[:boxes].expand(boxes, *value.shape[1:])


def _margins(place: Place, i: int, length: int, rows: Rows) -> tuple[int, int]:
    """How far the windows of any row stand out before and behind the map."""
    first = int(rows.at[i].min()) * place.step[i] + place.start[i]
    last = int(rows.at[i].max()) * place.step[i] + place.start[i] + place.size[i]
    return max(0, -first), max(0, last - length)


def inside(place: Place, shape: Map, rows: Rows) -> Tensor | None:
    """1 within the map and 0 outside of it, (1, height, width, 1, rows); None where all is
    within.
    """
    masks = []
    for i, length in enumerate(shape[1:]):
        first = rows.at[i] * place.step[i] + place.start[i]
        entry = torch.arange(place.size[i], device=first.device).unsqueeze(1) + first
        masks.append((entry >= 0) & (entry < length))
    if all(bool(mask.all()) for mask in masks):
        return None
    return (masks[0].unsqueeze(1) & masks[1].unsqueeze(0)).unsqueeze(0).unsqueeze(3)


def spread_back(
    value: Tensor, window: Sliding, kernel: Tensor | None, here: Place, into: Place
) -> Tensor:
    """The transposed convolution of windows, which begins where `here` does, as part of windows
    `into`; without a kernel the transposed sum.
    """
    by_entry = None if kernel is None else _by_entry(kernel, window.groups or 1)
    channels = (
        value.shape[0] if by_entry is None else by_entry.shape[2] * by_entry.shape[3]
    )
    out = value.new_zeros(channels, *into.size, *value.shape[3:])
    for y in range(window.kernel[0]):
        for x in range(window.kernel[1]):
            # Which entries of `value` this entry of the kernel sends into the windows, and whereto.
            (rows, down), (columns, right) = (
                _reached(
                    here.start[i] - into.start[i] + (y, x)[i] * window.dilation[i],
                    window.stride[i],
                    value.shape[1 + i],
                    into.size[i],
                )
                for i in range(2)
            )
            sent = value[:, rows, columns]
            if not sent.numel():  # all of it falls on padding
                continue
            if by_entry is not None:
                grouped = sent.reshape(by_entry.shape[2], by_entry.shape[4], -1)
                sent = (by_entry[y, x] @ grouped).reshape(-1, *sent.shape[1:])
            out[:, down, right] += sent
    return out


def _by_entry(kernel: Tensor, groups: int) -> Tensor:
    """(height, width, groups, channels before, channels behind), the last two of one group."""
    kernel = kernel.reshape(*kernel.shape, *[1] * (4 - kernel.ndim))
    grouped = kernel.reshape(groups, -1, *kernel.shape[1:])
    return grouped.permute(3, 4, 0, 2, 1).contiguous()


def _reached(first: int, stride: int, count: int, length: int) -> tuple[slice, slice]:
    """Of count entries at first, first + stride, …: those within the length, and where they are."""
    low = max(0, -(first // stride))
    high = max(low, min(count, (length - 1 - first) // stride + 1))
    begin = first + low * stride
    return slice(low, high), slice(begin, begin + (high - low) * stride, stride)


def embedded(value: Tensor, here: Place, into: Place) -> Tensor:
    """The same windows as part of larger ones, zero around them."""
    if here == into:
        return value
    out = value.new_zeros(value.shape[0], *into.size, *value.shape[3:])
    top, left = (here.start[i] - into.start[i] for i in range(2))
    out[:, top : top + here.size[0], left : left + here.size[1]] = value
    return out
