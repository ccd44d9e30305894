"""Tiny networks of every kind a certificate must cover, with random weights, biases and batch-norm
statistics.
"""

import copy

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.out = (
            nn.Linear(5, 6),
            nn.Linear(6, 6),
            nn.Linear(6, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        return self.out((h + self.inner(h)).relu())


class ConvBatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1, bias=False),
            nn.BatchNorm2d(3),
            nn.ReLU(),
            nn.Conv2d(3, 3, 3, stride=2),
            nn.BatchNorm2d(3),
            nn.LeakyReLU(0.2),
        )
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean(dim=(2, 3)))


class MaxPooled(nn.Module):
    def __init__(self, *, overlapping: bool = False) -> None:
        super().__init__()
        pool = nn.MaxPool2d(3, stride=2, padding=1) if overlapping else nn.MaxPool2d(2)
        self.body = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1),
            nn.ReLU(),
            pool,
            nn.Conv2d(3, 2, 2),
            nn.ReLU(),
        )
        self.head = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).flatten(1))


class UShaped(nn.Module):
    """Down, up by transposed convolution, and a skip connection by concatenation; answers with a
    map.
    """

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 3, 2, stride=2)
        self.deep = nn.Conv2d(3, 3, 3, padding=1)
        self.up = nn.ConvTranspose2d(3, 2, 2, stride=2)
        self.out = nn.Conv2d(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.deep(self.down(x).relu()).relu()
        return self.out(torch.cat([x, self.up(h).relu()], dim=1))


def fully_connected() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 3))


KINDS = {
    "fully connected": (fully_connected, (5,)),
    "residual": (Residual, (5,)),
    "batch norm": (ConvBatchNorm, (2, 5, 5)),
    "max-pool": (MaxPooled, (1, 4, 4)),
    "overlapping max-pool": (lambda: MaxPooled(overlapping=True), (1, 4, 4)),
    "u-shaped": (UShaped, (1, 4, 4)),
}


def randomize(model: nn.Module, generator: torch.Generator, scale: float = 1.0) -> nn.Module:
    """Random weights, biases and statistics, in eval mode."""
    for name, tensor in model.state_dict().items():
        if not tensor.is_floating_point():
            continue
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        fan = max(1, tensor[0].numel()) ** 0.5 if tensor.ndim > 1 else 2.0
        tensor.copy_(noise.abs() + 0.5 if "running_var" in name else scale * noise / fan)
    return model.eval()


def pruned(model: nn.Module, generator: torch.Generator, share: float = 0.5) -> nn.Module:
    """A copy with some weights zero: same signs, dominated."""
    return _changed(
        model,
        lambda w: w * (torch.rand(w.shape, generator=generator) > share).to(w),
        norms=False,
    )


def rounded(model: nn.Module, bits: int = 8) -> nn.Module:
    """A copy rounded to the nearest of 2^bits − 1 levels per tensor: same signs, not dominated."""

    def nearest(w: Tensor) -> Tensor:
        step = w.abs().max() / (2 ** (bits - 1) - 1)
        return (w / step).round() * step

    return _changed(model, nearest, norms=False)


def tuned(model: nn.Module, generator: torch.Generator, size: float = 0.1) -> nn.Module:
    """A copy moved at random, as fine-tuning does: signs change."""
    return _changed(
        model,
        lambda w: w + size * torch.randn(w.shape, generator=generator, dtype=torch.float64).to(w),
    )


def _changed(model: nn.Module, change, *, norms: bool = True) -> nn.Module:
    """With `norms=False` batch norms stay: a smaller β can turn the sign of the effective bias β −
    γ·mean/√(var+ε).
    """
    other = copy.deepcopy(model)
    with torch.no_grad():
        for module in other.modules():
            if norms or not isinstance(module, nn.BatchNorm2d):
                for parameter in module.parameters(recurse=False):
                    parameter.copy_(change(parameter))
    return other
