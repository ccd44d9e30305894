"""Training a tiny net: the gradient by hand, and Adam on the weights that are there."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from secateurs.study.reproduce.factorization.exchange.tiny import Tiny, backward


class Training(Protocol):
    """What training needs to know."""

    @property
    def q(self) -> float:
        """Of the loss."""

    @property
    def rate(self) -> float:
        """Of Adam."""

    @property
    def batch(self) -> int:
        """Images per step."""


def train_(
    net: Tiny,
    x: Tensor,
    y: Tensor,
    epochs: int,
    how: Training,
    generator: torch.Generator,
    *,
    anneal: bool = False,
) -> None:
    """Adam on the weights that are not zero; constant rate, or cosine to 0."""
    # Only the columns that the net looks at, copied once for all epochs.
    x, adam = x[:, net.pixels].contiguous(), _Adam.of(net)
    total, done = epochs * -(-len(x) // how.batch), 0
    for _ in range(epochs):
        for chosen in torch.split(
            torch.randperm(len(x), generator=generator), how.batch
        ):
            _gradient_(net, adam, x.index_select(0, chosen), y[chosen], how.q)
            adam.step_(
                how.rate
                * ((1 + math.cos(math.pi * done / total)) / 2 if anneal else 1)
            )
            done += 1


def _gradient_(net: Tiny, adam: "_Adam", x: Tensor, y: Tensor, q: float) -> None:
    """Of (1 − p_y^q)/q: p_y^q (p − e_y) at the logits."""
    seen = net.forward(x)
    p = seen[-1].softmax(1)
    weight = p.gather(1, y[:, None]) ** q / len(x)
    # p − e_y, in the place of p, which nobody needs any more.
    delta = p.scatter_add_(1, y[:, None], torch.full_like(weight, -1.0)).mul_(weight)
    depth = len(net.weights)
    for i, d in enumerate(backward(net, seen, delta)):
        # Straight into Adam's buffer: the inner loop makes no tensors for slopes.
        torch.mm(d.T, seen[i], out=adam.slopes[i])
        torch.sum(d, 0, out=adam.slopes[depth + i])


@dataclass(slots=True)
class _Adam:
    """Adam over one buffer that the net's parameters are views of; a zero stays zero."""

    flat: Tensor
    alive: Tensor
    slope: Tensor
    slopes: list[Tensor]
    first: Tensor
    second: Tensor
    steps: int = 0

    @classmethod
    def of(cls, net: Tiny) -> "_Adam":
        parameters = net.parameters
        flat = torch.cat([p.flatten() for p in parameters])
        views = _like(flat, parameters)
        # The net's tensors become views of one buffer, so a step is a few operations
        # for all of them.
        net.weights, net.biases = views[: len(net.weights)], views[len(net.weights) :]
        slope = torch.zeros_like(flat)
        alive = (flat != 0).to(flat.dtype)
        return cls(
            flat,
            alive,
            slope,
            _like(slope, parameters),
            torch.zeros_like(flat),
            torch.zeros_like(flat),
        )

    def step_(
        self,
        rate: float,
        *,
        decay: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self.steps += 1
        # An absent weight gets no slope and so no momentum: it stays absent.
        self.slope.mul_(self.alive)
        self.first.lerp_(self.slope, 1 - decay[0])
        self.second.mul_(decay[1]).addcmul_(
            self.slope, self.slope, value=1 - decay[1]
        )
        root = (
            self.second.sqrt().div_(math.sqrt(1 - decay[1] ** self.steps)).add_(eps)
        )
        self.flat.addcdiv_(
            self.first, root, value=-rate / (1 - decay[0] ** self.steps)
        )


def _like(flat: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    parts = torch.split(flat, [p.numel() for p in parameters])
    return [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]
