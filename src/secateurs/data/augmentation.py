"""Augmentation on whole batches: flips, shifts and rotations as functions `(images, generator) ->
images`.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from secateurs.errors import ArgumentError


def augment(x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    """The augmentation of the papers for colour images: flips, shifts up to 12.5 %, rotations up to
    15°.

    `x` is [N, channels, height, width]; pixels that come from outside are zero. Each image is drawn
    on its own.
    """
    return rotate(
        shift(flip(x, generator=generator), generator=generator), generator=generator
    )


def flip(
    x: Tensor, *, share: float = 0.5, generator: torch.Generator | None = None
) -> Tensor:
    """Mirror each image left to right with probability `share`."""
    turned = _uniform(len(x), x, generator) < share
    return torch.where(turned.view(-1, 1, 1, 1), x.flip(-1), x)


def shift(
    x: Tensor, *, most: float = 0.125, generator: torch.Generator | None = None
) -> Tensor:
    """Move each image by whole pixels, uniformly up to `most` of its side in both directions."""
    if not 0 <= most < 1:
        raise ArgumentError(
            f"a shift is a share of the side from 0 up to 1, not {most}."
        )
    height, width = x.shape[-2:]
    down = _rows(height, int(most * height), x, generator)
    right = _rows(width, int(most * width), x, generator)
    # One row and one column of zeros: the place "outside".
    padded = F.pad(x, (0, 1, 0, 1))
    moved = padded.gather(
        2, down.view(len(x), 1, height, 1).expand(-1, x.shape[1], -1, width + 1)
    )
    return moved.gather(
        3, right.view(len(x), 1, 1, width).expand(-1, x.shape[1], height, -1)
    )


def rotate(
    x: Tensor, *, degrees: float = 15.0, generator: torch.Generator | None = None
) -> Tensor:
    """Turn each image about its centre by an angle uniform on ±`degrees`, interpolating
    linearly.
    """
    angle = (2 * _uniform(len(x), x, generator) - 1) * math.radians(degrees)
    cos, sin = angle.cos(), angle.sin()
    # Grid coordinates run over ±1 on both axes, whatever the sides.
    aspect = x.shape[-2] / x.shape[-1]
    zero = torch.zeros_like(cos)
    rows = torch.stack(
        [cos, -sin * aspect, zero, sin / aspect, cos, zero], dim=1
    ).view(-1, 2, 3)
    grid = F.affine_grid(rows.to(x.dtype), list(x.shape), align_corners=False)
    return F.grid_sample(
        x, grid, mode="bilinear", padding_mode="zeros", align_corners=False
    )


def _rows(
    side: int, most: int, x: Tensor, generator: torch.Generator | None
) -> Tensor:
    """For each image the source row of every row after a random shift; `side` stands for
    outside.
    """
    moved = (_uniform(len(x), x, generator) * (2 * most + 1)).floor().long() - most
    source = torch.arange(side, device=x.device) - moved.view(-1, 1)
    return torch.where((source >= 0) & (source < side), source, side)


def _uniform(count: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform numbers on [0, 1), drawn on the generator's device and moved to the images'."""
    device = like.device if generator is None else generator.device
    return torch.rand(count, generator=generator, device=device).to(like.device)
