"""Random networks of the theorems, pruned as they say, and their exact sup-errors (identity
activations).
"""

import math
from itertools import pairwise

import torch
from torch.nn import functional as F

from secateurs.base.singular_values import spectral_norms


def uniform_layer(rows, columns, batch, generator):
    """Entries iid uniform on ±1/√max(rows, columns)."""
    return (torch.rand(batch, rows, columns, generator=generator) * 2 - 1) / math.sqrt(
        max(rows, columns)
    )


def prune_drawn(weights, count, generator):
    """The random scheme of Theorems 2 and 3 on a batch (…, rows, columns[, q, q]): `count`
    positions drawn with replacement become zero, with all their taps.
    """
    batch, rows, columns = weights.shape[:3]
    drawn = torch.randint(rows * columns, (batch, count), generator=generator)
    kept = torch.ones(batch, rows * columns).scatter_(1, drawn, 0.0)
    return weights * kept.view(batch, rows, columns, *[1] * (weights.ndim - 3))


def norms(matrices):
    return spectral_norms(matrices, tolerance=1e-4).values


def linear_errors(widths, count, batch, generator, scale=1.0):
    """sup_{‖x‖≤1}‖f − F‖ of linear networks of three layers: the norm of last · (what was removed)
    · first.
    """
    first, inner, last = (
        scale * uniform_layer(a, b, batch, generator) for b, a in pairwise(widths)
    )
    return norms(last @ (inner - prune_drawn(inner, count, generator)) @ first)


def filters(batch, rows, columns, kernel, generator):
    """Entries iid uniform on ±1."""
    return torch.rand(batch, rows, columns, kernel, kernel, generator=generator) * 2 - 1


def pull_back(rows, kernels):
    """Rows of a linear map on (d_out, p, p) maps, one set per network, pulled back through circular
    convolutions.
    """
    batch, count, channels, p, _ = rows.shape
    taps = kernels.transpose(1, 2).flip(-1, -2)
    side = kernels.shape[-1] // 2
    maps = F.pad(
        rows.transpose(0, 1).reshape(count, batch * channels, p, p),
        (side,) * 4,
        mode="circular",
    )
    found = F.conv2d(maps, taps.reshape(-1, channels, *kernels.shape[-2:]), groups=batch)
    return found.view(count, batch, -1, p, p).transpose(0, 1)


def conv_errors(setting, count, batch, generator, scale=1.0, last_scale=None):
    """sup over ‖x‖ ≤ p0√d0 of ‖f − F‖ for linear convolutional networks of three layers, entries on
    ±K/(p√d).

    `last_scale` is the K of the linear layer."""
    d, p, q = setting.channels, setting.map_size, setting.kernel
    bound = scale / (p * math.sqrt(d))
    first, inner = (bound * filters(batch, d, c, q, generator) for c in (setting.input_channels, d))
    last = (torch.rand(batch, setting.outputs, d, p, p, generator=generator) * 2 - 1) * bound
    last = last if last_scale is None else last * last_scale / scale
    removed = inner - prune_drawn(inner, count, generator)
    return setting.input_norm * norms(pull_back(pull_back(last, removed), first).flatten(2))
