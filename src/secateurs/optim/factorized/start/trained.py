"""Weights that were trained, told from fresh ones: what a drawn start would throw away."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_log = logging.getLogger("secateurs.optim")

SIGMAS = 8.0
"""How far beyond chance the rows of a fresh matrix must differ in size; chance reaches 6."""

SIDE = 16
"""The least number of rows and of columns that says something."""

_REDRAWN = (
    "%s look trained, and the default start draws new weights: what they know is lost."
    " init='pretrained' keeps them; init='dwf' says that the draw is meant"
)


def settle_(groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make init=None the drawn start "dwf"; returns the groups that left it open."""
    asked = [group for group in groups if group.get("init") is None]
    for group in asked:
        group["init"] = "dwf"
    return asked


def say_redrawn(
    groups: Sequence[dict[str, Any]], names: Mapping[nn.Parameter, str]
) -> None:
    """Say loudly where the drawn start throws away weights that look trained."""
    drawn = [
        p for group in groups if group["depth"] is not None for p in group["params"]
    ]
    found = [names[p] for p in drawn if p.requires_grad and looks_trained(p)]
    if found:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        _log.warning(_REDRAWN, ", ".join(map(repr, found[:3])) + more)


def looks_trained(weight: Tensor) -> bool:
    """Whether rows or columns differ in size by more than independent draws can.

    Every usual initialisation draws the entries of a matrix alike and independently, or makes rows
    of equal length. Then the mean squares of n rows of length m vary by about var(w²)/m, within
    √(2/n) of it. Training makes some neurons and some inputs matter more than others.

    >>> looks_trained(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))
    False
    """
    if weight.ndim < 2 or not weight.numel():
        return False
    squares = weight.detach().reshape(weight.shape[0], -1).double().square()
    if min(squares.shape) < SIDE:
        return False
    return max(_excess(squares), _excess(squares.T)) > SIGMAS


def _excess(squares: Tensor) -> float:
    """By how many standard deviations the means of rows vary more than those of equal draws."""
    expected = float(squares.var()) / squares.shape[1]
    if not expected > 0:
        return 0.0
    ratio = float(squares.mean(1).var()) / expected
    return (ratio - 1) * float(torch.tensor((squares.shape[0] - 1) / 2).sqrt())
