"""Layered networks and their explicit liftings."""

import itertools

import torch
from torch import nn


def layered(*widths, bias=True):
    layers = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).double()


def explicit(model):
    """Φ of a layered network: one entry per path, those from inputs and those from hidden
    biases.
    """
    linear = [m for m in model if isinstance(m, nn.Linear)]
    # Paths × neurons of this layer.
    paths = torch.eye(linear[0].in_features, dtype=torch.float64)
    for layer in linear:
        # every path splits over the neurons of the next layer
        # Paths, out, in.
        split = paths.unsqueeze(1) * layer.weight.detach().unsqueeze(0)
        out = layer.out_features
        each = torch.zeros(*split.shape, out, dtype=torch.float64)
        each[:, torch.arange(out), :, torch.arange(out)] = split.transpose(0, 1)
        paths = each.flatten(0, 2)
        if layer.bias is not None:
            paths = torch.cat([paths, torch.diag(layer.bias.detach())])
    return paths.sum(dim=1)
