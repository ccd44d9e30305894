"""Models to plan for, and how they are pruned."""

from itertools import pairwise

from torch import nn


def mlp(make, widths=(64, 64, 64, 8)):
    layers = [part for a, b in pairwise(widths[:-1]) for part in (nn.Linear(a, b), make(b))]
    return nn.Sequential(*layers, nn.Linear(*widths[-2:]))


ADMITTED = {
    "relu": lambda n: nn.ReLU(),
    "prelu": lambda n: nn.PReLU(init=30.0),
    "batch norm": nn.BatchNorm1d,
    "batch norm, relu": lambda n: nn.Sequential(
        nn.BatchNorm1d(n), nn.ReLU(inplace=True), nn.Dropout(0.5)
    ),
    "sigmoid": lambda n: nn.Sigmoid(),
    "softplus": lambda n: nn.Softplus(),
    "leaky": lambda n: nn.LeakyReLU(3.0),
    "gelu": lambda n: nn.GELU(),
}


def small_conv(**options):
    """Two convolutions on 8×8 maps (with padding), pooling, one linear layer."""
    second = nn.Sequential(nn.Conv2d(16, 16, 3, **options), nn.MaxPool2d(2))
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, **options),
        nn.ReLU(),
        second,
        nn.Flatten(),
        nn.Linear(16 * 16, 10),
    )
