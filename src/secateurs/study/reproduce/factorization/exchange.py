"""Beyond the paper: which few hundred weights should a net keep? Exchange them until nothing better
is found.

Weight decay on factors leaves a net of a few hundred weights whose positions were decided early, in
the company of thousands that died later. With so few weights the choice itself can be improved. One
round: add the absent weights that promise the largest fall of the loss (g²/2h: gradient and
Gauss–Newton curvature of one weight), train, remove as many again by the optimal brain surgeon
(Hassibi & Stork 1993: smallest w²/2[H⁻¹]ww, the others compensate), train. A round counts only when
the training loss falls; the test images are never looked at.

The loss is the generalised cross-entropy (1 − p^q)/q of Zhang & Sabuncu 2018: at q → 0 the
cross-entropy, at q = 1 the share of errors in expectation. A net too small to fit the hard images
should not spend its weights on them.
"""

import copy
import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.study.reproduce.factorization.tiny import (
    Tiny,
    backward,
    generalised,
    train_,
)

LARGEST = 5000
"""Weights at most: the surgeon inverts a matrix of this order."""
SAMPLE = 4000
"""Images for the curvature; gains use five times as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """How to search: rounds, the share of weights exchanged in the first of them (it falls to a
    twentieth), and q.

    `step` is the share removed between two epochs of training, `rate` Adam's, `final` the epochs of
    the last training.
    """

    rounds: int = 40
    share: float = 1.0
    q: float = 0.5
    step: float = 0.07
    rate: float = 3e-3
    final: int = 50
    batch: int = 512

    def __post_init__(self) -> None:
        if not (
            0 < self.q <= 1
            and 0 < self.step < 1
            and self.share >= 0
            and self.rounds >= 0
        ):
            raise ArgumentError(
                f"q and step lie in (0, 1], share and rounds are not below 0; got {self}."
            )


def exchange(
    net: Tiny,
    x: Tensor,
    y: Tensor,
    *,
    keep: int,
    how: Exchange,
    generator: torch.Generator,
) -> Tiny:
    """The best net of `keep` parameters found, on CPU images x (all columns) with labels y; `net`
    is not changed.
    """
    if not (1 <= keep <= LARGEST and 1 <= net.kept <= LARGEST):
        raise ArgumentError(
            f"{net.kept:,} weights, {keep:,} to keep: between 1 and {LARGEST:,} can be exchanged:"
            " train with another λ."
        )
    net = copy.deepcopy(net)
    _shrink_(net, x, y, keep, how, generator)
    best, lowest = copy.deepcopy(net), _loss(net, x, y, how.q)
    for done in range(how.rounds):
        share = how.share * (1 - done / how.rounds) + 0.05
        # In two halves, so that the second choice sees what the first has changed.
        for _ in range(2):
            grow_(
                net,
                x,
                y,
                count=max(1, round(keep * share / 2)),
                q=how.q,
                generator=generator,
            )
            train_(net, x, y, 2, how, generator)
        _shrink_(net, x, y, keep, how, generator)
        reached = _loss(net, x, y, how.q)
        if reached < lowest:
            best, lowest = copy.deepcopy(net), reached
        # From a slightly worse net the search goes on, which leads out of local minima;
        # from a much worse one it goes back.
        elif reached > 1.02 * lowest:
            net = copy.deepcopy(best)
    train_(
        best,
        x,
        y,
        how.final,
        replace(how, batch=how.batch // 2),
        generator,
        anneal=True,
    )
    return best


def _shrink_(
    net: Tiny,
    x: Tensor,
    y: Tensor,
    keep: int,
    how: Exchange,
    generator: torch.Generator,
) -> None:
    while net.kept > keep:
        count = min(net.kept - keep, max(1, int(how.step * net.kept)))
        remove_(net, x, y, count=count, q=how.q, generator=generator)
        train_(net, x, y, 1, how, generator)
    train_(net, x, y, 6, how, generator, anneal=True)


@torch.no_grad()
def grow_(
    net: Tiny,
    x: Tensor,
    y: Tensor,
    *,
    count: int,
    q: float,
    generator: torch.Generator,
) -> None:
    """Add the absent parameters with the largest g²/h, as weights too small to change anything."""
    net.widen_(x.shape[1])
    gains = promises(net, x, y, q=q, generator=generator)
    flat = torch.cat(
        [
            # Gains are never below 0, so −1 keeps what is there already from being
            # chosen.
            torch.where(p != 0, -1.0, g).flatten()
            for p, g in zip(net.parameters, gains, strict=True)
        ]
    )
    chosen = torch.zeros(len(flat), dtype=torch.bool)
    chosen[flat.topk(count).indices] = True
    for p, new in zip(
        net.parameters,
        torch.split(chosen, [p.numel() for p in net.parameters]),
        strict=True,
    ):
        # Not 0, which means absent: training leaves zeros alone.
        p[new.view_as(p)] = 1e-8
    net.cut_()


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


@torch.no_grad()
def remove_(
    net: Tiny,
    x: Tensor,
    y: Tensor,
    *,
    count: int,
    q: float,
    generator: torch.Generator,
) -> None:
    """Remove `count` parameters one by one by the optimal brain surgeon, the others
    compensating.
    """
    places = [p.nonzero(as_tuple=True) for p in net.parameters]
    values = torch.cat(
        [p[at] for p, at in zip(net.parameters, places, strict=True)]
    ).double()
    curvature = gauss_newton(net, x, y, q=q, generator=generator)
    values = surgeon(values, curvature, count=count)
    for p, at, part in zip(
        net.parameters,
        places,
        torch.split(values, [len(at[0]) for at in places]),
        strict=True,
    ):
        p.zero_()
        p[at] = part.to(p.dtype)
    net.cut_()


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


@torch.no_grad()
def _loss(net: Tiny, x: Tensor, y: Tensor, q: float) -> float:
    return float(generalised(net.forward(x[:, net.pixels])[-1], y, q=q))


def _sample(
    x: Tensor, y: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    chosen = torch.randperm(len(x), generator=generator)[:count]
    return x[chosen], y[chosen]
