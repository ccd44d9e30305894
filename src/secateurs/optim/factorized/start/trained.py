"""Weights that were trained, told from fresh ones: what a drawn start would throw away."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_log = logging.getLogger("secateurs.optim")

SIGMAS = 8.0
"""How far beyond chance the rows of a fresh matrix must differ in size; chance reaches 6."""

SPIKE = 5.0
"""How far above σ(√n + √m) the largest singular value says trained; chance: exp(−12.5) = 4e-6.

LeNet-300-100 with normal starts, whose rows give nothing away: 8.4 after 1,000 steps of SGD at 0.1
(Fashion-MNIST, accuracy 87 %), 10.6 after 100 steps of Adam; fresh ones lie below 0.
"""
ITERATIONS = 12

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
        # The checks of the options, and a saved state, know named starts only.
        group["init"] = "dwf"
    return asked


def say_redrawn(
    groups: Sequence[dict[str, Any]], names: Mapping[nn.Parameter, str]
) -> None:
    """Say loudly where the drawn start throws away weights that look trained."""
    drawn = [
        p for group in groups if group["depth"] is not None for p in group["params"]
    ]
    found = [names[p] for p in drawn if p.requires_grad and _used(p)]
    if found:
        # Three names are enough to find the model; a ResNet would fill the screen.
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        _log.warning(_REDRAWN, ", ".join(map(repr, found[:3])) + more)


def _used(parameter: nn.Parameter) -> bool:
    """Whether a weight was trained: by its values, or since a gradient is left of the last step.

    A few steps leave no trace in the values.
    """
    left = parameter.grad is not None and bool(parameter.grad.any())
    return left or looks_trained(parameter)


def looks_trained(weight: Tensor) -> bool:
    """Whether a matrix has more order in it than independent draws can have.

    Every usual initialisation draws the entries of a matrix alike and independently, or makes rows
    of equal length. Then two things hold. The mean squares of n rows of length m vary by about
    var(w²)/m, within √(2/n) of it. And no direction stands out: the largest singular value is at
    most σ(√n + √m), and above σ(√n + √m + t) with a chance of at most exp(−t²/2) (Gaussian
    entries; Davidson and Szarek 2001). Training makes some neurons and inputs matter more than
    others, and adds a few strong directions. It is seen after some hundred steps, not after ten.

    >>> looks_trained(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))
    False
    """
    if weight.ndim < 2 or not weight.numel():
        return False
    matrix = weight.detach().reshape(weight.shape[0], -1)
    # Means over a few entries vary too much for either test.
    if min(matrix.shape) < SIDE:
        return False
    squares = matrix.double().square()
    # Rows and columns: training grows some neurons, and weights from some inputs. The
    # cheap test goes first, the spectrum costs a dozen products.
    if max(_excess(squares), _excess(squares.T)) > SIGMAS:
        return True
    return _standing_out(matrix.float()) > SPIKE


def _standing_out(matrix: Tensor) -> float:
    """By how much the largest singular value lies above that of equal draws, in units of σ."""
    # A common mean would stand out as a direction of its own, trained or not.
    centred = matrix - matrix.mean()
    deviation = float(centred.std())
    if not 0 < deviation < math.inf:
        return 0.0
    # Subspace iteration comes close from below, so a poor estimate raises no false alarm.
    start = torch.Generator().manual_seed(0)
    basis = torch.randn(matrix.shape[1], 4, generator=start).to(matrix.device)
    for _ in range(ITERATIONS):
        basis = torch.linalg.qr(centred.T @ (centred @ basis)).Q
    largest = float(torch.linalg.matrix_norm(centred @ basis, 2))
    rows, columns = matrix.shape
    return largest / deviation - math.sqrt(rows) - math.sqrt(columns)


def _excess(squares: Tensor) -> float:
    """By how many standard deviations the means of rows vary more than those of equal draws."""
    # The spread of w² is measured, not assumed: uniform, normal and truncated starts
    # differ in it.
    expected = float(squares.var()) / squares.shape[1]
    if not expected > 0:
        return 0.0
    ratio = float(squares.mean(1).var()) / expected
    return (ratio - 1) * float(torch.tensor((squares.shape[0] - 1) / 2).sqrt())
