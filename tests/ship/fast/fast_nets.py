"""Small random networks: residual, dense, U-shaped, grouped, depthwise, shared; every geometry."""

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

KINDS = ("residual", "dense", "u-shaped", "grouped", "depthwise", "shared")


def _act(rng: random.Random) -> nn.Module:
    return rng.choice([nn.ReLU(), nn.LeakyReLU(0.2), nn.ReLU6(), nn.Identity()])


def _conv(rng: random.Random, inp: int, out: int, groups: int = 1, stride: int = 1) -> nn.Module:
    """Keeps the size at stride 1."""
    kernel, dilation = rng.choice([1, 3, 5]), rng.choice([1, 1, 2])
    padding = dilation * (kernel - 1) // 2
    return nn.Sequential(
        nn.Conv2d(
            inp,
            out,
            kernel,
            stride,
            padding,
            dilation,
            groups,
            bias=rng.random() < 0.5,
        ),
        nn.BatchNorm2d(out) if rng.random() < 0.7 else nn.Identity(),
        _act(rng),
    )


class RandomNet(nn.Module):
    """Two blocks of one kind between a first convolution and a linear layer."""

    def __init__(self, kind: str, seed: int) -> None:
        super().__init__()
        rng = random.Random(seed)
        self.kind, width = kind, rng.choice([4, 6, 8])
        self.pool = rng.choice([nn.MaxPool2d(2, ceil_mode=True), nn.AvgPool2d(3, 2, 1)])
        self.first = _conv(rng, 3, width, stride=rng.choice([1, 2]))
        groups = {"grouped": 2, "depthwise": width}.get(kind, 1)
        self.a = _conv(rng, width, width, groups)
        self.b = self.a if kind == "shared" else _conv(rng, width, width, groups)
        self.mix = _conv(rng, width, width)
        self.join = _conv(rng, 3 * width if kind == "dense" else 2 * width, width)
        self.fc = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.kind == "dense":
            y = self.a(x)
            x = self.join(torch.cat([x, y, self.b(y)], 1))
        elif self.kind == "u-shaped":
            y = F.interpolate(self.a(self.pool(x)), size=x.shape[2:], mode="nearest")
            x = self.join(torch.cat([self.b(x), y], 1))
        else:
            x = F.relu(x + self.b(self.mix(self.a(x))))
        return self.fc(F.adaptive_avg_pool2d(self.pool(x), 1).flatten(1))


def build(kind: str, seed: int) -> nn.Module:
    """In evaluation mode, with batch-norm statistics that matter and random zeros."""
    torch.manual_seed(seed)
    model = RandomNet(kind, seed).double().eval()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(std=0.3)
                module.running_var.uniform_(0.5, 2.0)
                module.weight.normal_()
                module.bias.normal_(std=0.3)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter *= torch.rand(parameter.shape) < random.Random(seed).choice([0.1, 0.5, 1])
    return model
