"""What both adapters do: prune over the steps of a loop that somebody else runs."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from secateurs.errors import ArgumentError
from secateurs.masks import sparsity
from secateurs.optim.holding.optimizers import unwrapped
from secateurs.prune import Gradual, Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """The steps of a run in which it is pruned, as shares of its length."""

    start: float = 0.1
    end: float = 0.7
    cuts: int = 20

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end <= 1:
            raise ArgumentError(
                f"start={self.start!r}, end={self.end!r}: shares of the run, 0 <= start < end <= 1."
            )
        if (
            isinstance(self.cuts, bool)
            or not isinstance(self.cuts, int)
            or self.cuts < 1
        ):
            raise ArgumentError(
                f"cuts={self.cuts!r} is not a whole number from 1 on."
            )

    def steps(self, total: int) -> tuple[int, int, int]:
        """First and last step, and the steps between two cuts."""
        first, last = int(self.start * total), max(1, int(self.end * total))
        if last <= first:
            raise ArgumentError(f"a run of {total} steps is too short to prune in.")
        # Rounded up: rather one cut fewer than asked than one more.
        every = max(1, math.ceil((last - first) / self.cuts))
        return first, last, every


class Pruner:
    """A `Gradual` that begins when the loop has its model and optimizer."""

    def __init__(self, recipe: Recipe, when: When, given: Mapping[str, Any]) -> None:
        self.recipe, self.when, self.given = recipe, when, dict(given)
        self.gradual: Gradual | None = None

    def begin(self, model: nn.Module, optimizer: object, steps: int) -> None:
        """Hold from now on, and cut over the shares of a run of `steps` optimizer steps."""
        first, last, every = self.when.steps(steps)
        # accelerate wraps the optimizer, and hooks on the wrapper would never run.
        inner = unwrapped(optimizer)
        self.gradual = Gradual(
            model,
            self.recipe,
            inner,
            start=first,
            end=last,
            every=every,
            **self.given,
        )

    def step(self) -> None:
        """Count an optimizer step; prune where a cut is due."""
        if self.gradual is not None:
            self.gradual.step()

    def report(self, log: Callable[[dict[str, float]], object]) -> None:
        """Hand the share of zeros over, in the loop's own way."""
        if self.gradual is not None:
            masks = self.gradual.masks
            log({"sparsity": sparsity(masks).total.sparsity})

    def end(self) -> None:
        """Stop holding; the zeros stay in the weights."""
        if self.gradual is not None:
            # Once more before letting go: the loop may have loaded its best checkpoint,
            # from before the cuts.
            self.gradual.held.enforce()
            self.gradual.held.release()
