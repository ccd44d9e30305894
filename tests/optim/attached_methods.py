"""Methods that act through an optimizer, and the small trainings in which they are tried."""

import torch
from torch import nn

from secateurs.optim import ACDC, HAM, SET, DGating, PowerPropagation, RigL

STEPS = 40

METHODS = {
    "rigl": lambda m, o, g: RigL(m, o, sparsity=0.8, steps=STEPS, every=5, generator=g),
    "set": lambda m, o, g: SET(m, o, sparsity=0.8, steps=STEPS, every=5, generator=g),
    "acdc": lambda m, o, g: ACDC(m, o, sparsity=0.8, steps=STEPS, every=4),
    "ham": lambda m, o, g: HAM(m, o, alpha=20.0, beta=0.1),
    "power": lambda m, o, g: PowerPropagation(m, o, alpha=3.0),
    "gating": lambda m, o, g: DGating(m, o, strength=1e-3, depth=3),
}
SPARSE = ("rigl", "set", "acdc")

OPTIMIZERS = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9, weight_decay=1e-4),
    "nesterov": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda ps: torch.optim.Adam(ps, lr=0.01, amsgrad=True),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.01),
}


def network(dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3)).to(dtype)


def loss_of(model, step):
    g = torch.Generator().manual_seed(step)
    dtype = next(model.parameters()).dtype
    x, y = torch.randn(16, 6, generator=g), torch.randn(16, 3, generator=g)
    return (model(x.to(dtype)) - y.to(dtype)).square().mean()


def train(model, optimizer, begin=0, end=STEPS, each=lambda step: None):
    for step in range(begin, end):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        each(step)


def generator(seed=5):
    return torch.Generator().manual_seed(seed)


def started(method, optimizer="sgd", dtype=torch.float32, seed=5):
    model = network(dtype)
    made = OPTIMIZERS[optimizer](model.parameters())
    return model, made, METHODS[method](model, made, generator(seed))
