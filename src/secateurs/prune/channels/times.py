"""Channels pruned to a share of the measured time of a forward pass."""

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError
from secateurs.graph import Example
from secateurs.prune.channels.budgets import largest_within, pruned_by, without
from secateurs.prune.channels.pruned import PrunedChannels
from secateurs.ship.channels import Channels
from secateurs.ship.compaction import compact
from secateurs.ship.timing import LatencyTable


def fitted_to_time(
    model: nn.Module, example: Example, found: Channels, ranked: Tensor, share: float
) -> PrunedChannels:
    """Halving on the measured time of the compacted network; seven tries come within a hundredth of
    the channels."""
    dense = seconds(model, example)
    low, high, best = 0, len(ranked), dense
    for _ in range(7):
        middle = (low + high) // 2
        took = _compacted_seconds(
            model, example, found, without(found, ranked, middle)
        )
        if took <= share * dense:
            high, best = middle, took
        else:
            low = middle
    return pruned_by(found, without(found, ranked, high), (best, dense))


def fitted_to_table(
    table: LatencyTable, found: Channels, ranked: Tensor, share: float
) -> PrunedChannels:
    """As many channels as a table of the layers' times lets stay: an estimate, always the same."""
    if table.kind != "channels":
        raise ArgumentError(
            f"the table holds times by {table.kind}; whole channels need "
            'latency_table(model, example, kind="channels").'
        )

    def took(kept: Tensor) -> float:
        return table.seconds(found.shares(kept))

    kept = largest_within(ranked, found, took, share)
    return pruned_by(found, kept, (took(kept), table.dense))


def _compacted_seconds(
    model: nn.Module, example: Example, found: Channels, kept: Tensor
) -> float:
    return seconds(compact(model, example, masks=found.masks(kept)), example)


@torch.no_grad()
def seconds(model: nn.Module, example: Example, *, times: int = 15) -> float:
    """The median time of a forward pass on the example."""
    import statistics
    import time

    from secateurs.ship.compaction.verify import run

    run(model, example)
    seen = []
    for _ in range(times):
        start = time.perf_counter()
        run(model, example)
        seen.append(time.perf_counter() - start)
    # The median, since other work on the machine only ever makes single passes longer.
    return statistics.median(seen)
