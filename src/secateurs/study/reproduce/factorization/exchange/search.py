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
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.study.reproduce.factorization.exchange.adam import train_
from secateurs.study.reproduce.factorization.exchange.surgeon import (
    gauss_newton,
    promises,
    surgeon,
)
from secateurs.study.reproduce.factorization.exchange.tiny import Tiny, generalised

LARGEST = 5000
"""Weights at most: the surgeon inverts a matrix of this order."""


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
    # Judged by the training loss: the test images are never looked at.
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
            # Gains are never below 0, so −1 keeps what is
            # there already from being chosen.
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


@torch.no_grad()
def _loss(net: Tiny, x: Tensor, y: Tensor, q: float) -> float:
    return float(generalised(net.forward(x[:, net.pixels])[-1], y, q=q))
