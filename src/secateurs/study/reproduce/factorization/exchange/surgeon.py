"""Which weights to remove, which to add: curvature, the optimal brain surgeon, and gains."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from secateurs.study.reproduce.factorization.exchange.tiny import (
    Tiny,
    backward,
)

SAMPLE = 4000
"""Images for the curvature; gains use five times as many."""


def promises(
    net: Tiny, x: Tensor, y: Tensor, *, q: float, generator: torch.Generator
) -> list[Tensor]:
    """g²/h of every parameter, present or not: twice what Newton's step on it alone would take off
    the loss.

    h = E[δ²a²] with δ for labels drawn from the net's own probabilities (Fisher), weighted like the
    loss.
    """
    x, y = _sample(x[:, net.pixels], y, 5 * SAMPLE, generator)
    seen = net.forward(x)
    p = seen[-1].softmax(1)
    weight = p.gather(1, y[:, None]) ** q
    drawn = torch.multinomial(p, 1, generator=generator)[:, 0]
    slopes = backward(net, seen, weight * (p - F.one_hot(y, p.shape[1])))
    # The root of the weight, because these slopes are squared below.
    bends = backward(net, seen, weight.sqrt() * (p - F.one_hot(drawn, p.shape[1])))
    pairs = [
        (s.T @ a, (b**2).T @ a**2)
        for s, b, a in zip(slopes, bends, seen, strict=False)
    ]
    pairs += [(s.sum(0), (b**2).sum(0)) for s, b in zip(slopes, bends, strict=True)]
    return [
        # Damped, or a weight with hardly any curvature would promise the world.
        (g / len(x)) ** 2 / (h / len(x) + 1e-3 * h.mean() / len(x) + 1e-12)
        for g, h in pairs
    ]


def gauss_newton(
    net: Tiny, x: Tensor, y: Tensor, *, q: float, generator: torch.Generator
) -> Tensor:
    """E[p_y^q JᵀHJ] over the parameters that are not zero, H = diag(p) − ppᵀ, float64."""
    x, y = _sample(x[:, net.pixels], y, SAMPLE, generator)
    places = [p.nonzero(as_tuple=True) for p in net.parameters]
    total, depth = sum(len(at[0]) for at in places), len(net.weights)
    result = torch.zeros(total, total, dtype=torch.float64)
    # In parts: one row for each image and class at once would take most of a gigabyte.
    for part, labels in zip(torch.split(x, 1000), torch.split(y, 1000), strict=True):
        seen = net.forward(part)
        p = seen[-1].softmax(1)
        # diag(p) − ppᵀ = Σ p_c (e_c − p)(e_c − p)ᵀ: with its root the sum is one
        # product of matrices.
        root = (p * p.gather(1, labels[:, None]) ** q).sqrt()
        deltas = backward(
            net, seen, root[:, :, None] * (torch.eye(p.shape[1]) - p[:, None])
        )
        columns = [
            deltas[i][:, :, places[i][0]] * seen[i][:, None, places[i][1]]
            for i in range(depth)
        ]
        columns += [deltas[i][:, :, places[depth + i][0]] for i in range(depth)]
        rows = torch.cat(columns, 2).flatten(0, 1)
        result += (rows.T @ rows).double()
    return result / len(x)


def surgeon(
    values: Tensor, curvature: Tensor, *, count: int, damp: float = 1e-4
) -> Tensor:
    """Minimise ½(v − values)ᵀH(v − values) greedily, one entry of v after the other forced to 0.

    >>> H = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    >>> surgeon(torch.tensor([0.1, 1.0], dtype=torch.float64), H, count=1, damp=0.0).tolist()
    [0.0, 1.05]
    """
    mean = float(curvature.diagonal().mean())
    # Damped, since weights that no image of the sample uses make the matrix singular.
    inverse = torch.linalg.inv(
        curvature
        + (damp * mean + 1e-30) * torch.eye(len(values), dtype=curvature.dtype)
    )
    values, alive = values.clone(), torch.ones(len(values), dtype=torch.bool)
    for _ in range(count):
        cost = torch.where(
            alive, values**2 / inverse.diagonal().clamp_min(1e-300), math.inf
        )
        i = int(cost.argmin())
        values = values - values[i] / inverse[i, i] * inverse[:, i]
        inverse = inverse - torch.outer(inverse[:, i], inverse[i]) / inverse[i, i]
        alive[i] = False
        # Exactly zero: the updates leave rounding errors in what was removed.
        values[~alive] = 0.0
        # The row of a removed weight is zero by now; 1 keeps it harmless.
        inverse[i, i] = 1.0
    return values


def _sample(
    x: Tensor, y: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    chosen = torch.randperm(len(x), generator=generator)[:count]
    return x[chosen], y[chosen]
