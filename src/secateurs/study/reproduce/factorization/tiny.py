"""A fully connected net of a few hundred weights: cut to what is alive, evaluated, trained,
differentiated by hand.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


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


@dataclass(slots=True, kw_only=True)
class Tiny:
    """A fully connected ReLU net, cut to its live units: weights, biases, and which inputs
    (`pixels`) it looks at.
    """

    weights: list[Tensor]
    biases: list[Tensor]
    pixels: Tensor

    @classmethod
    def of(cls, parameters: list[Tensor]) -> "Tiny":
        """From weight, bias, weight, bias, … of the full net."""
        weights, biases = (
            [p.detach().clone() for p in parameters[i::2]] for i in (0, 1)
        )
        net = cls(
            weights=weights, biases=biases, pixels=torch.arange(weights[0].shape[1])
        )
        return net.cut_()

    @property
    def parameters(self) -> list[Tensor]:
        """Weights, then biases."""
        return [*self.weights, *self.biases]

    @property
    def kept(self) -> int:
        """How many parameters are not zero."""
        return sum(int((p != 0).sum()) for p in self.parameters)

    def forward(
        self, x: Tensor, parameters: list[Tensor] | None = None
    ) -> list[Tensor]:
        """What enters each layer, and last the logits; x has the columns `pixels`."""
        parameters = self.parameters if parameters is None else parameters
        depth, seen = len(self.weights), [x]
        for i in range(depth):
            x = F.linear(x, parameters[i], parameters[depth + i])
            x = x if i + 1 == depth else F.relu(x)
            seen.append(x)
        return seen

    def accuracy(self, x: Tensor, y: Tensor) -> float:
        """In percent; x has all columns."""
        return 100 * float(
            (self.forward(x[:, self.pixels])[-1].argmax(1) == y).float().mean()
        )

    def cut_(self) -> "Tiny":
        """Drop units that nobody hears or that say the same to every image: the latter move into
        the next biases.
        """
        before = -1
        # Until nothing changes: a unit that goes can leave others unheard.
        while before != (before := self.kept + sum(len(w) for w in self.weights)):
            for i in range(len(self.weights) - 1):
                self._cut_hidden_(i)
        seen = (self.weights[0] != 0).any(0)
        self.weights[0], self.pixels = self.weights[0][:, seen], self.pixels[seen]
        return self

    def _cut_hidden_(self, i: int) -> None:
        fed = (self.weights[i] != 0).any(1)
        self.biases[i + 1] = self.biases[i + 1] + self.weights[i + 1][
            :, ~fed
        ] @ F.relu(self.biases[i][~fed])
        live = fed & (self.weights[i + 1] != 0).any(0)
        self.weights[i], self.biases[i] = self.weights[i][live], self.biases[i][live]
        self.weights[i + 1] = self.weights[i + 1][:, live]

    def widen_(self, inputs: int) -> "Tiny":
        """Look at all inputs again, with zero weights."""
        wide = torch.zeros(len(self.weights[0]), inputs)
        wide[:, self.pixels] = self.weights[0]
        self.weights[0], self.pixels = wide, torch.arange(inputs)
        return self


def backward(net: Tiny, seen: list[Tensor], delta: Tensor) -> list[Tensor]:
    """δ at every layer's output, first layer first; `delta` (n, …, classes) is the one at the
    logits.
    """
    deltas = [delta]
    for weight, out in zip(net.weights[:0:-1], seen[-2:0:-1], strict=True):
        active = (out > 0).view(len(out), *[1] * (delta.ndim - 2), -1)
        deltas.insert(0, (deltas[0] @ weight) * active)
    return deltas


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


def generalised(logits: Tensor, y: Tensor, *, q: float) -> Tensor:
    """Mean of (1 − p_y^q)/q.

    >>> round(float(generalised(torch.zeros(1, 2), torch.tensor([0]), q=1.0)), 3)
    0.5
    """
    # p^q = exp(−q · cross-entropy), which is still a number where p itself underflows.
    return (1 - (-q * F.cross_entropy(logits, y, reduction="none")).exp()).mean() / q
