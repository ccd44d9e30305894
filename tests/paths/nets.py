"""Tiny networks for the oracles: every path can be enumerated."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Residual(nn.Module):
    """Convolution, batch norm, max-pool, a skip connection, two outputs."""

    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 2)
        self.norm = nn.BatchNorm2d(width)
        self.conv = nn.Conv2d(width, width, 1)
        self.norm2 = nn.BatchNorm2d(width, affine=False)
        self.pool = nn.MaxPool2d(2, 1)
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = F.relu(x + self.norm2(self.conv(x)))
        return self.head(self.pool(x).flatten(1))


class Branches(nn.Module):
    """cat, slice, padding, average pool, maximum of two, a subtraction, a scale parameter, a
    constant.
    """

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv1d(1, 2, 2), nn.Conv1d(1, 1, 3, padding=1, bias=False)
        self.gain = nn.Parameter(torch.randn(3, 1))
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        left = F.pad(F.relu(self.a(x)), (0, 1))
        joined = torch.cat([left, self.b(x) * 0.5 - x], 1) * self.gain
        tops = torch.maximum(joined, joined.flip(2))
        return self.head(
            F.avg_pool1d(tops, 2, 1, 1, count_include_pad=False)[:, :, 1:3].flatten(1) - 0.25
        )


class UpDown(nn.Module):
    """A transposed convolution, nearest up-sampling, a strided slice, no bias."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 2, 2, stride=2, bias=False)
        self.up = nn.ConvTranspose2d(2, 1, 2, stride=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.down(x))
        z = self.up(y) + F.interpolate(y[:, :1], scale_factor=2)
        return F.relu(z)[:, 0, ::2, 1]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


TINY = {
    "mlp": (mlp, (3,)),
    "residual": (Residual, (1, 3, 3)),
    "branches": (Branches, (1, 3)),
    "up-down": (UpDown, (1, 4, 4)),
}


def tiny(name: str) -> tuple[nn.Module, Tensor]:
    """A tiny model in float64 and evaluation mode with random statistics, and one input."""
    make, shape = TINY[name]
    model = make().double().eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            if module.affine:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
    return model, torch.randn(1, *shape, dtype=torch.float64)


def zeroed(model: nn.Module, share: float) -> nn.Module:
    """A copy with random entries of every parameter set to zero."""
    from copy import deepcopy

    pruned = deepcopy(model)
    for parameter in pruned.parameters():
        parameter.data *= torch.rand_like(parameter) >= share
    return pruned
