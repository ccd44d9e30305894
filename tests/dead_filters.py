"""Networks whose filters were set to zero while biases and norms stayed, as filter pruning leaves
them."""

import torch
from torch import nn


def dead_filters(model, share, seed=0):
    """Zero a share of the filters of every hidden layer; biases and norms stay."""
    g = torch.Generator().manual_seed(seed)
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.modules.conv._ConvNd)]
    with torch.no_grad():
        for m in layers[:-1]:
            transposed = isinstance(m, nn.modules.conv._ConvTransposeNd)
            rows = m.weight.movedim(1 if transposed and m.groups == 1 else 0, 0)
            rows[torch.rand(len(rows), generator=g) < share] = 0
