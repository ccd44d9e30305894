"""Small networks and training steps for the tests of factorized optimizers."""

import torch
import torch.nn.functional as F
from torch import nn

from secateurs.optim import FactorizedSGD


def regression(n=80, p=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, p, dtype=torch.float64, generator=generator)
    truth = torch.zeros(p, dtype=torch.float64)
    truth[:4] = torch.tensor([2.0, -1.0, 0.5, -0.1])
    return x, x @ truth + 0.1 * torch.randn(n, dtype=torch.float64, generator=generator)


def net(dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4)).to(dtype)


def batch(dtype=torch.float32, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(32, 12, generator=generator, dtype=dtype), torch.randint(
        4, (32,), generator=generator
    )


def train(model, optimizer, steps, *, first=0, after=lambda: None):
    for seed in range(first, first + steps):
        x, y = batch(next(model.parameters()).dtype, seed)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        after()


def make(model, **options):
    options = {
        "lr": 0.2,
        "strength": 1e-3,
        "generator": torch.Generator().manual_seed(3),
        **options,
    }
    return FactorizedSGD(model.named_parameters(), **options)
