"""How far the outputs of two networks are apart: at random points of the unit ball, and at the
worst one found.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateurs import random
from secateurs.diagnosis.confidence import clopper_pearson
from secateurs.diagnosis.running import checked_output
from secateurs.errors import StructureMismatch


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputErrors:
    """‖f(x) − F(x)‖₂ as a function of x, both models in evaluation mode. `hint` says how to give
    another input.
    """

    dense: nn.Module
    sparse: nn.Module
    shape: tuple[int, ...]
    hint: str

    def at(self, x: Tensor) -> Tensor:
        """One error for each point."""
        one, other = (
            checked_output(model, x, f"the {name} model", self.hint)
            for name, model in (("sparse", self.sparse), ("dense", self.dense))
        )
        if one.shape != other.shape:
            raise StructureMismatch(
                f"the dense model returns {tuple(other.shape)}, the sparse one {tuple(one.shape)}."
            )
        return _lengths(one - other)

    def ball(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Uniform points of the unit ball."""
        like = next(self.dense.parameters())
        points = random.normal(
            like.new_empty(count, *self.shape), generator=generator
        )
        # The volume within radius r grows as r^n, so the radius of a uniform point is
        # u^(1/n).
        radius = random.uniform(like.new_empty(count), generator=generator) ** (
            1 / math.prod(self.shape)
        )
        return (
            points
            / _norms(points)
            * radius.to(points).view(-1, *(1 for _ in self.shape))
        )

    def search(
        self, restarts: int, steps: int, generator: torch.Generator | None
    ) -> float:
        """Projected gradient ascent from random points of the ball; the best error seen."""
        x, best = self.ball(restarts, generator), 0.0
        for step in range(steps):
            x = x.detach().requires_grad_()
            errors = self.at(x)
            best = max(best, float(errors.detach().max()))
            # Points do not touch each other: the gradient of the sum holds each one's
            # own.
            (slope,) = torch.autograd.grad(errors.sum(), x, allow_unused=True)
            size = _norms(slope) if slope is not None else None
            if slope is None or size is None or not bool((size > 0).any()):
                return best
            # A step of fixed length that shrinks slowly: the size of the gradient says
            # nothing of how far the boundary is. The clamp keeps points with no
            # gradient where they are.
            moved = x.detach() + slope / size.clamp_min(1e-30) / (1 + 0.2 * step)
            # Back onto the ball; points inside stay.
            x = moved / _norms(moved).clamp_min(1.0)
        return max(best, float(self.at(x.detach()).max()))

    def probability(
        self,
        epsilon: float,
        points: int,
        confidence: float,
        generator: torch.Generator | None,
    ) -> tuple[float, float, float]:
        """The share of random points with an error of at most ε, and its confidence interval."""
        with torch.no_grad():
            within = sum(
                int(
                    (
                        # 256 at a time, so that memory does not grow with the number of
                        # points.
                        self.at(self.ball(min(256, points - start), generator))
                        <= epsilon
                    ).sum()
                )
                for start in range(0, points, 256)
            )
        return within / points, *clopper_pearson(
            within, points, confidence=confidence
        )


def _norms(x: Tensor) -> Tensor:
    return _lengths(x).view(-1, *(1 for _ in x.shape[1:]))


def _lengths(x: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(x.reshape(len(x), -1), dim=1)
    return lengths
