"""A fully connected net of a few hundred weights: cut to what is alive, evaluated, trained,
differentiated by hand.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


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
        # The slope of ReLU at 0 is taken as 0, as torch does.
        active = (out > 0).view(len(out), *[1] * (delta.ndim - 2), -1)
        deltas.insert(0, (deltas[0] @ weight) * active)
    return deltas


def generalised(logits: Tensor, y: Tensor, *, q: float) -> Tensor:
    """Mean of (1 − p_y^q)/q.

    >>> round(float(generalised(torch.zeros(1, 2), torch.tensor([0]), q=1.0)), 3)
    0.5
    """
    # p^q = exp(−q · cross-entropy), which is still a number where p itself underflows.
    return (1 - (-q * F.cross_entropy(logits, y, reduction="none")).exp()).mean() / q
