"""Scores of stored weights, made while they are read: magnitudes, or random numbers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.errors import ArgumentError, ScoreError
from secateurs.prune.on_disk.checkpoint import Shard
from secateurs.prune.on_disk.header import Entry
from secateurs.random import generator
from secateurs.scores import SCORES

Chunks = Callable[[Shard, Entry], Iterator[Tensor]]
"""The scores of a tensor, in the pieces in which its bytes are read."""


def values(shard: Shard, entry: Entry) -> Iterator[Tensor]:
    """The weights themselves; what is not finite has no rank and is refused."""
    dtype = getattr(torch, entry.kind.torch)
    for chunk in shard.chunks(entry):
        piece = chunk.view(dtype)
        if not bool(torch.isfinite(piece).all()):
            raise ScoreError(
                f"{shard.path}: {entry.name!r} holds NaN or infinite values, which have no rank."
            )
        yield piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Random:
    """Independent numbers, drawn anew from the same seed at each pass instead of being kept."""

    seed: int

    def __call__(self, shard: Shard, entry: Entry) -> Iterator[Tensor]:
        # By name, so that the order of the tensors and the number of shards change
        # nothing.
        own = generator(self.seed, f"prune {entry.name}")
        for piece in values(shard, entry):
            # One dtype whatever the weights have: 16 bits would make many ties.
            yield torch.rand(piece.shape, generator=own, dtype=torch.float32)


def chunks_of(score: str, seed: int) -> Chunks:
    """The reader of a score. Only scores that look at nothing but the weights can be read here."""
    rules: dict[str, Chunks] = {"magnitude": values, "random": Random(seed=seed)}
    if score in rules:
        return rules[score]
    # A name that nobody registered is refused by the registry, with the nearest known one.
    name = SCORES[score].name
    raise ArgumentError(
        f"the score {name!r} runs the network, and a file alone has none: name it with --arch, or"
        " use prune_ or prune_blocks_ in Python. Of a file: magnitude, random."
    )
