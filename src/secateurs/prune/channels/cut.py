"""Pruning whole channels: weights, biases, norms and every layer that reads them, so that `compact`
shrinks the net."""

from typing import Any

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError, EmptySelectionError
from secateurs.graph import Example
from secateurs.masks import apply_
from secateurs.parameters import Where, refuse_wrapped
from secateurs.prune.channels.budgets import (
    count_of,
    entries_of,
    largest_within,
    pruned_by,
    ranked_channels,
    read_budget,
)
from secateurs.prune.channels.pruned import PrunedChannels
from secateurs.prune.channels.times import fitted_to_table, fitted_to_time
from secateurs.scores import Rule, score
from secateurs.ship.channels import Channels, channels
from secateurs.ship.timing import LatencyTable

SCOPES = ("global", "uniform")


def prune_channels_(
    model: nn.Module,
    example: Example,
    rule: str | Rule = "magnitude",
    *,
    scope: str = "uniform",
    floor: float = 1,
    where: Where = None,
    batch: Any = None,
    loss: Any = None,
    generator: torch.Generator | None = None,
    latencies: LatencyTable | None = None,
    **budget: float,
) -> PrunedChannels:
    """Set whole channels to zero, in place: rows, columns, biases and norms alike; then `compact`
    cuts them out.

    A channel's score is the mean score of all weights that go with it. The best channels stay, as
    many as the budget allows, and in every layer `floor` of them.

    Args:
        model: read by `secateurs.capture`, in evaluation mode.
        example: an input of the right shape.
        rule: a score of `secateurs.score`.
        scope: "uniform": each layer keeps about the same share; "global": all channels compete,
            which by magnitude nearly empties wide layers, whose weights are small.
        floor: channels every layer keeps at least; below 1 a share of them.
        where, batch, loss, generator: for the score.
        budget: exactly one of sparsity, density, compression (of all entries of the network),
            channels (the share of channels kept), macs (the share of multiplications kept) and
            latency (the share of the measured time of a forward pass on the example, compacted).
        latencies: a `secateurs.latency_table` of kind "channels", from which the time is then
            estimated: the same table gives the same channels again.

    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).eval()
    >>> print(prune_channels_(model, torch.zeros(1, 8), channels=0.25).channels)
    (4, 16)
    >>> from secateurs import compact
    >>> compact(model, torch.zeros(1, 8))[0].weight.shape
    torch.Size([4, 8])
    """
    pruned = cut_channels(
        model,
        example,
        rule,
        scope=scope,
        floor=floor,
        where=where,
        batch=batch,
        loss=loss,
        generator=generator,
        latencies=latencies,
        **budget,
    )
    apply_(model, pruned.masks)
    return pruned


def cut_channels(
    model: nn.Module,
    example: Example,
    rule: str | Rule = "magnitude",
    *,
    scope: str = "uniform",
    floor: float = 1,
    where: Where = None,
    batch: Any = None,
    loss: Any = None,
    generator: torch.Generator | None = None,
    latencies: LatencyTable | None = None,
    **budget: float,
) -> PrunedChannels:
    """What `prune_channels_` would do, without doing it."""
    kind, share = read_budget(budget)
    refuse_wrapped(model)
    if scope not in SCOPES:
        raise ArgumentError(f"scope={scope!r} is neither 'global' nor 'uniform'.")
    found = channels(model, example)
    if not len(found.labels):
        raise EmptySelectionError(
            f"{type(model).__name__} has no channel that could go whole."
        )
    inputs = example if isinstance(example, Tensor) else None
    scores = score(
        model,
        rule,
        where=where,
        example=inputs,
        batch=batch,
        loss=loss,
        generator=generator,
    )
    ranked = ranked_channels(found, found.score(scores), scope, floor)
    if kind == "latency" and latencies is None:
        return fitted_to_time(model, example, found, ranked, share)
    if kind == "latency" and latencies is not None:
        return fitted_to_table(latencies, found, ranked, share)
    measure = {"density": entries_of, "channels": count_of, "macs": Channels.macs}[
        kind
    ]
    kept = largest_within(ranked, found, lambda some: measure(found, some), share)
    return pruned_by(found, kept)
