"""A small network and its loss as a function of one flat vector, for the oracles of scores."""

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F


class Small(nn.Module):
    """Convolution, batch norm, residual sum, two pools: everything that is not a plain chain, in
    few weights.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(3)
        self.again = nn.Conv2d(3, 3, 3, padding=1, groups=3, bias=False)
        self.head = nn.Linear(3, 3)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x)))
        return self.head((x + F.relu(self.again(x))).mean((2, 3)))


def small() -> Small:
    torch.manual_seed(1)
    return Small().double()


def batch(n: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 2, 6, 6, dtype=torch.float64), torch.randint(3, (n,))


NAMES = ["conv.weight", "again.weight", "head.weight"]
MODES = [True, False]


def flat_loss(model, x, y, temperature=1.0):
    """The mean loss as a function of one flat vector of the chosen weights, and that vector."""
    weights = {n: model.get_parameter(n).detach() for n in NAMES}
    shapes = [weights[n].shape for n in NAMES]
    buffers = {n: b.clone() for n, b in model.named_buffers()}

    def loss(vector):
        parts = [
            p.view(s)
            for p, s in zip(vector.split([s.numel() for s in shapes]), shapes, strict=True)
        ]
        fresh = {n: b.clone() for n, b in buffers.items()}
        return F.cross_entropy(
            functional_call(model, dict(zip(NAMES, parts, strict=True)) | fresh, (x,))
            / temperature,
            y,
        )

    return loss, torch.cat([weights[n].flatten() for n in NAMES])


def flat(scores):
    return torch.cat([scores[n].flatten() for n in NAMES])
