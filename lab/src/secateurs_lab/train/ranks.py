"""One training on several processes: which share of each batch is ours, and means over all."""

import os
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Our place among the processes of one training; alone by default.

    Every process draws the same order of examples and takes every `world`-th example of each
    batch. A share's loss is weighted by its size, so that the mean of the gradients is that of the
    whole batch, whether it divides or not.
    """

    rank: int = 0
    world: int = 1

    @classmethod
    def from_environment(cls) -> "Ranks":
        """As `torchrun` says in the environment; alone without it."""
        return cls(
            rank=int(os.environ.get("RANK", 0)),
            world=int(os.environ.get("WORLD_SIZE", 1)),
        )

    def share(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, float]:
        """Our examples of a batch, and the weight of their mean loss."""
        if self.world == 1:
            return x, y, 1.0
        mine = slice(self.rank, None, self.world)
        # Fewer examples than processes: take part with one example of weight zero.
        if self.rank >= len(y):
            return x[:1], y[:1], 0.0
        # DDP divides the sum of the gradients by the number of processes; the weight
        # undoes that.
        return x[mine], y[mine], len(y[mine]) * self.world / len(y)

    def mean(self, value: float, examples: int, device: torch.device) -> float:
        """The mean over the examples of all processes."""
        if self.world == 1:
            return value
        sums = torch.tensor([value * examples, examples], dtype=torch.float64, device=device)
        torch.distributed.all_reduce(sums)
        return float(sums[0] / sums[1].clamp_min(1))


ALONE = Ranks()
